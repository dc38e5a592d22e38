// A browser, the server's API beside it, and what the tests of the web UI have in common.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname } from 'node:path'
import { chromium } from 'playwright-core'

export const BASE = process.env.COFFER_URL
export const KEY = process.env.COFFER_API_KEY
export const DATA = process.env.COFFER_E2E_DATA_DIR
/** A registrable domain whose names all lead to the server. */
export const SITE = 'coffer.test'
const CHROMIUM = process.env.CHROMIUM ?? '/usr/bin/chromium'

// Deadlines end a hang; no test waits for one.
const PATIENCE = 60_000

export const operatorKey = () => readFileSync(`${DATA}/operator-key`, 'utf8').trim()

export async function api(method, path, body, key = KEY) {
  const response = await fetch(`${BASE}${path}`, {
    method,
    headers: { 'x-api-key': key, 'content-type': 'application/json' },
    body: body === undefined ? undefined : JSON.stringify(body),
  })
  const text = await response.text()
  assert.ok(response.ok, `${method} ${path}: ${response.status} ${text}`)
  return text === '' ? undefined : JSON.parse(text)
}

export async function makeSandbox(body = {}) {
  return api('POST', '/api/v1/sandboxes', { timeout_s: 1800, ...body })
}

let launched

export async function browser() {
  const names = `--host-resolver-rules=MAP *.${SITE} ${new URL(BASE).hostname}`
  launched ??= chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox', '--disable-dev-shm-usage', names] })
  return launched
}

export async function closeBrowser() {
  await (await launched)?.close()
  // Connections of fetch that are kept for later would keep this process, for as long as the server keeps them.
  await globalThis[Symbol.for('undici.globalDispatcher.1')]?.destroy()
}

/** A page of its own profile, which fails the test on whatever the browser complains about. */
export async function openPage(options = {}) {
  const context = await (
    await browser()
  ).newContext({ viewport: { width: 1440, height: 900 }, reducedMotion: 'reduce', ...options })
  const page = await context.newPage()
  page.setDefaultTimeout(PATIENCE)
  page.complaints = []
  page.on('pageerror', (error) => page.complaints.push(`error: ${error.message}`))
  page.on('dialog', (dialog) => {
    page.complaints.push(`dialog: ${dialog.message()}`)
    void dialog.dismiss()
  })
  page.on('console', (message) => {
    const text = message.text()
    if (text.includes('Content Security Policy')) page.complaints.push(`policy: ${text}`)
  })
  page.on('request', (request) => {
    const { protocol, host } = new URL(request.url())
    if (protocol.startsWith('http') && host !== new URL(BASE).host) page.complaints.push(`elsewhere: ${request.url()}`)
    if (request.url().includes(KEY.slice(4))) page.complaints.push(`a key in a URL: ${request.url()}`)
  })
  // Chromium reports some requests that its content security policy stops, depending on which process stops them. Such a
  // request never leaves the browser.
  page.on('requestfailed', (request) => {
    if (!/\bcsp\b/i.test(request.failure()?.errorText.replaceAll('_', ' ') ?? '')) return
    const index = page.complaints.indexOf(`elsewhere: ${request.url()}`)
    if (index >= 0) page.complaints[index] = `policy: ${request.url()}`
  })
  return page
}

export async function signIn(page, path = '/ui/', key = KEY) {
  await page.goto(`${BASE}${path}`)
  await page.getByLabel('API key').fill(key)
  await page.getByRole('button', { name: 'Sign in' }).click()
  await page.locator('header').waitFor()
}

export async function eventually(condition, what) {
  const deadline = Date.now() + PATIENCE
  for (;;) {
    const found = await condition()
    if (found) return found
    assert.ok(Date.now() < deadline, `not within ${PATIENCE} ms: ${typeof what === 'function' ? await what() : what}`)
    await new Promise((done) => setTimeout(done, 100))
  }
}

/** What the terminal shows, row by row. */
export async function screen(page) {
  const rows = await page.locator('[data-terminal]:not(.hidden) .xterm-rows > div').allInnerTexts()
  return rows.map((row) => row.replaceAll('\u00a0', ' ').trimEnd())
}

/** The process that `coffer up` runs as its server. */
export function serverPid() {
  const up = process.env.COFFER_UP_PID
  for (const pid of readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
    try {
      const parent = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').at(-1).split(' ')[1]
      const [, role] = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0')
      if (parent === up && role === 'server') return Number(pid)
    } catch {
      // It ended while we looked.
    }
  }
  return undefined
}

/** A repository of this server's own with those files on its default branch, and more on others. */
export async function makeRepository(name, files, branches = {}) {
  await api('POST', '/api/v1/repositories', { name })
  const { clone_url: remote } = await api('GET', `/api/v1/repositories/${name}`)
  const work = mkdtempSync(`${tmpdir()}/coffer-ui-git-`)
  const git = (...words) => {
    const identity = ['-c', 'user.name=e2e', '-c', 'user.email=e2e@localhost', '-c', 'init.defaultBranch=main']
    const done = spawnSync('git', [...identity, ...words], { cwd: work, encoding: 'utf8' })
    assert.equal(done.status, 0, `git ${words.join(' ')}: ${done.stderr}`)
  }
  try {
    git('init', '-q')
    const commit = (all, message) => {
      for (const [path, text] of Object.entries(all)) {
        mkdirSync(dirname(`${work}/${path}`), { recursive: true })
        writeFileSync(`${work}/${path}`, text)
      }
      git('add', '.')
      git('commit', '-qm', message)
    }
    commit(files, 'feat: what there is')
    git('remote', 'add', 'origin', `${BASE.replace('://', `://x:${KEY}@`)}${new URL(remote, BASE).pathname}`)
    git('push', '-q', 'origin', 'main')
    for (const [branch, changed] of Object.entries(branches)) {
      git('checkout', '-qb', branch, 'main')
      commit(changed, `feat: ${branch}`)
      git('push', '-q', 'origin', branch)
    }
  } finally {
    rmSync(work, { recursive: true, force: true })
  }
}

/** An agent that runs that script in a shell, with its prompt as the first argument. */
export async function makeAgent(name, script) {
  const definition = { preset: 'custom', command: ['sh', '-c', script, 'agent', '{prompt}'] }
  return (await api('POST', '/api/v1/agents', { name, definition })).id
}

/** Tells the longest task of the page from now on, when it is asked. */
export async function watchLongTasks(page) {
  await page.evaluate(() => {
    window.longest = 0
    new PerformanceObserver((list) => {
      for (const { duration } of list.getEntries()) window.longest = Math.max(window.longest, duration)
    }).observe({ type: 'longtask' })
  })
  return () => page.evaluate(() => Math.round(window.longest))
}

/** What took how long is told; it fails the test only where that was asked for, on a machine with nothing else to do. */
export function judgeSmoothness(t, what, longest) {
  t.diagnostic(`${what}: the longest task took ${longest} ms`)
  if (process.env.COFFER_E2E_SMOOTH === '1') assert.ok(longest <= 200, `${what}: ${longest} ms`)
}

export const nextFrame = (page) => page.evaluate(() => new Promise((drawn) => requestAnimationFrame(drawn)))
