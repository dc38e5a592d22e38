// Every page at two widths, light and dark: a picture of each is kept, and axe looks for what shuts people out.
import assert from 'node:assert/strict'
import { mkdirSync, readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { after, before, test } from 'node:test'
import {
  api,
  closeBrowser,
  eventually,
  makeAgent,
  makeRepository,
  makeSandbox,
  openPage,
  operatorKey,
  screen,
  signIn,
} from './browser.mjs'

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')
const SHOTS = process.env.COFFER_E2E_SCREENSHOTS
mkdirSync(SHOTS, { recursive: true })

let id
let task
let fork
let volume
let build
before(async () => {
  const agent = await api('POST', '/api/v1/agents', { name: 'reviewer' })
  for (const name of ['nightly tests', 'docs']) await makeSandbox({ metadata: { name }, agent_id: agent.id })
  const dockerfile = 'FROM e2bdev/base\nRUN echo installed\nRUN echo about to fail; exit 3\n'
  build = (await api('POST', '/api/v1/templates', { name: 'shop-api', dockerfile })).id
  await eventually(
    async () => (await api('GET', `/api/v1/template-builds/${build}`)).state === 'error',
    () => api('GET', `/api/v1/template-builds/${build}`).then(JSON.stringify),
  )
  volume = (await api('POST', '/api/v1/volumes', { name: 'pip-cache', size_mib: 256 })).id
  await api('POST', '/api/v1/volumes', { name: 'models', size_mib: 128 })
  const volumes = [{ name: 'pip-cache', path: '/data' }]
  id = (await makeSandbox({ metadata: { name: 'fix the parser', ticket: 'ABC-17' }, volumes })).id
  await api('POST', `/api/v1/sandboxes/${id}/exec`, {
    command:
      'mkdir -p app/src; echo "print(1)" > app/main.py; cat app/main.py; ls nothing; curl -sm 5 http://192.168.7.7/ ; true',
  })
  await api('POST', `/api/v1/sandboxes/${id}/exec`, { command: 'python3 -m http.server 8000', background: true })
  await api('PUT', '/api/v1/secrets/GITHUB_TOKEN', { value: 'not a real one', hosts: ['api.github.com'] })
  await api('POST', '/api/v1/budgets', { amount: 50, period: 'month' })
  for (const [title, state, priority] of [
    ['Explain the errors of the parser', 'todo', 'high'],
    ['Close what is opened', 'todo', 'low'],
    ['Faster tests', 'done', 'medium'],
  ]) {
    task = (
      await api('POST', '/api/v1/tasks', {
        title,
        state,
        priority,
        labels: ['parser'],
        description: 'So that people know what to do.',
      })
    ).id
  }
  await makeRepository('shown', { 'README.md': '# Shown\n' })
  const coder = await makeAgent('coder', 'echo working; echo "more of it" >> README.md')
  task = (
    await api('POST', '/api/v1/tasks', {
      title: 'Say more',
      description: 'The README is short.',
      repository: 'shown',
      agent_id: coder,
    })
  ).id
  await api('POST', `/api/v1/tasks/${task}/start`, {})
  fork = (
    await api('POST', '/api/v1/sandboxes/fork', {
      title: 'Say it better',
      prompt: 'Improve it.',
      repository: 'shown',
      entries: [{ agent_id: coder }, { agent_id: coder, label: 'again' }],
    })
  ).id
  const { id: hook } = await api('POST', '/api/v1/webhooks', {
    url: 'https://hooks.example/coffer',
    events: ['task.*'],
    enabled: false,
  })
  await api('POST', `/api/v1/webhooks/${hook}/test`)
  await eventually(
    async () => (await api('GET', `/api/v1/tasks/${task}`)).state === 'in_review',
    () => api('GET', `/api/v1/tasks/${task}/attempts`).then(JSON.stringify),
  )
  await eventually(
    async () => (await api('GET', `/api/v1/sandboxes/fork/${fork}`)).state === 'waiting',
    () => api('GET', `/api/v1/sandboxes/fork/${fork}`).then(JSON.stringify),
  )
  await api('PUT', '/api/v1/policy', {
    default: 'allow',
    rules: [{ effect: 'deny', pattern: 'git push', note: 'by review only' }],
  })
})
after(async () => {
  await api('PUT', '/api/v1/policy', { default: 'allow', rules: [] })
  await closeBrowser()
})

/** Serious findings of axe on what is shown now. */
async function findings(page) {
  const { violations } = await page.evaluate(async (source) => {
    // The policy forbids scripts from elsewhere in the page; the test's own world may have one.
    if (window.axe === undefined) new Function(source)()
    return window.axe.run(document, { resultTypes: ['violations'] })
  }, AXE)
  return violations
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .map(
      ({ id: rule, nodes }) =>
        `${rule}: ${nodes
          .slice(0, 3)
          .map((node) => `${node.target} ${node.failureSummary ?? ''}`)
          .join(' | ')}`,
    )
}

const WAYS = [
  [1440, 900, 'light'],
  [1440, 900, 'dark'],
  [390, 844, 'light'],
  [390, 844, 'dark'],
]

const drawn = (page) =>
  page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))))

/** Of changes that come close together Chromium may not tell the page all: then it is asked once more. */
async function prefer(page, colorScheme) {
  const isSo = (dark) => document.documentElement.classList.contains('dark') === dark
  for (let tries = 1; ; tries++) {
    await page.emulateMedia({ colorScheme })
    try {
      return await page.waitForFunction(isSo, colorScheme === 'dark', { timeout: 10_000 })
    } catch (error) {
      if (tries === 3) throw error
      await page.emulateMedia({ colorScheme: colorScheme === 'dark' ? 'light' : 'dark' })
      await drawn(page)
    }
  }
}

async function look(page, name, settles = true) {
  if (settles) await page.waitForLoadState('networkidle')
  await page
    .getByRole('status')
    .filter({ hasText: '…' })
    .first()
    .waitFor({ state: 'hidden' })
    .catch(() => {})
  const found = []
  for (const [width, height, colorScheme] of WAYS) {
    await page.setViewportSize({ width, height })
    await drawn(page)
    await prefer(page, colorScheme)
    await drawn(page)
    await page.screenshot({ path: `${SHOTS}/${name}-${width}-${colorScheme}.png` })
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth)
    if (wide > 0) found.push(`${name} is ${wide} px too wide at ${width}`)
    if ((width === 1440) === (colorScheme === 'light')) {
      found.push(...(await findings(page)).map((one) => `${name} ${width} ${colorScheme}: ${one}`))
    }
  }
  await page.setViewportSize({ width: 1440, height: 900 })
  return found
}

test(
  'every page: nothing shuts people out, nothing is too wide, and there are pictures',
  { timeout: 290_000 },
  async () => {
    const page = await openPage({ bypassCSP: true })
    const found = []
    await page.goto(`${process.env.COFFER_URL}/ui/`)
    await page.getByLabel('API key').waitFor()
    found.push(...(await look(page, 'sign-in')))
    await signIn(page)
    const pages = {
      sandboxes: '/sandboxes',
      create: '/sandboxes?create=true',
      overview: `/sandboxes/${id}`,
      notebook: `/sandboxes/${id}/notebook`,
      files: `/sandboxes/${id}/files?path=%22/home/user/app%22`,
      editor: `/sandboxes/${id}/files?open=%22/home/user/app/main.py%22`,
      processes: `/sandboxes/${id}/processes`,
      logs: `/sandboxes/${id}/logs`,
      network: `/sandboxes/${id}/network`,
      snapshots: `/sandboxes/${id}/snapshots`,
      events: `/sandboxes/${id}/events`,
      board: '/board',
      drawer: `/board?task=%22${task}%22`,
      task: `/tasks/${task}`,
      forks: '/forks',
      fork: `/forks/${fork}`,
      templates: '/templates',
      template: '/templates/shop-api',
      'template-of-server': '/templates/base',
      'template-new': '/templates/new',
      'template-build': `/templates/shop-api/builds/${build}`,
      volumes: '/volumes',
      volume: `/volumes/${volume}`,
      mount: '/sandboxes?create=true&volume=pip-cache',
      repositories: '/repositories',
      repository: '/repositories/shown',
      pull: '/repositories/shown/pulls/1',
      monitoring: '/monitoring',
      'log-search': '/logs',
      'log-found': '/logs?q=%22started%22',
      audit: '/audit',
      settings: '/settings',
      keys: '/settings/keys',
      agents: '/settings/agents',
      secrets: '/settings/secrets',
      budgets: '/settings/budgets',
      schedules: '/settings/schedules',
      forges: '/settings/connections',
      webhooks: '/settings/webhooks',
      policy: '/settings/policy',
      'no-such-page': '/nothing',
    }
    for (const [name, path] of Object.entries(pages)) {
      await page.goto(`${process.env.COFFER_URL}/ui${path}`)
      found.push(...(await look(page, name)))
    }
    await page.goto(`${process.env.COFFER_URL}/ui/sandboxes/${id}/terminal`)
    await page.locator('[data-terminal=live]').waitFor()
    await page.keyboard.type('ls -l --color=always / | head -20\n')
    await eventually(
      async () => (await screen(page)).some((row) => row.includes('usr')),
      () => screen(page),
    )
    found.push(...(await look(page, 'terminal', false)))
    await page.goto(`${process.env.COFFER_URL}/ui/sandboxes`)
    await page.waitForLoadState('networkidle')
    await page.keyboard.press('Control+k')
    await page.getByPlaceholder('Find a task').waitFor()
    found.push(...(await look(page, 'palette')))

    await page.goto(`${process.env.COFFER_URL}/ui/settings/webhooks`)
    await page.getByRole('button', { name: 'Deliveries' }).click()
    await page.getByRole('cell', { name: 'webhook.ping', exact: true }).waitFor()
    found.push(...(await look(page, 'deliveries', false)))

    const operator = await openPage({ bypassCSP: true })
    await signIn(operator, '/ui/', operatorKey())
    await operator.getByRole('heading', { name: 'Projects' }).waitFor()
    found.push(...(await look(operator, 'projects')))
    await operator.getByRole('button', { name: 'Open', exact: true }).first().click()
    await operator.getByRole('row').filter({ hasText: 'fix the parser' }).waitFor()
    await operator.getByRole('link', { name: 'Monitoring' }).click()
    await operator.getByRole('heading', { name: 'The whole server' }).waitFor()
    found.push(...(await look(operator, 'monitoring-operator')))
    assert.deepEqual(found, [])
    assert.deepEqual(
      [...page.complaints, ...operator.complaints].filter((one) => !one.startsWith('policy:')),
      [],
    )
  },
)
