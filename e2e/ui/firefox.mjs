// Firefox of the distribution, by WebDriver BiDi, which it speaks itself: no driver beside it.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'

export const FIREFOX = process.env.FIREFOX ?? '/usr/bin/firefox-esr'
export const hasFirefox = existsSync(FIREFOX)

// Deadlines end a hang; no test waits for one.
const PATIENCE = 60_000

const KEYS = { Enter: '\uE007', Escape: '\uE00C', Tab: '\uE004', Space: ' ', ArrowRight: '\uE014', Control: '\uE009' }

/** Starts a Firefox without a window and with a profile of its own. */
export async function openFirefox() {
  const profile = mkdtempSync(`${tmpdir()}/coffer-firefox-`)
  // Nothing is asked of Mozilla's servers.
  const quiet = ['app.update.enabled', 'browser.safebrowsing.malware.enabled', 'network.captive-portal-service.enabled']
  writeFileSync(`${profile}/user.js`, quiet.map((name) => `user_pref("${name}", false);\n`).join(''))
  const words = ['--headless', '--no-remote', '--profile', profile, '--remote-debugging-port', '0', 'about:blank']
  const firefox = spawn(FIREFOX, words, { stdio: ['ignore', 'ignore', 'pipe'], env: { ...process.env, HOME: profile } })
  // Also where a test ends before it closes it.
  process.once('exit', () => firefox.kill('SIGKILL'))
  const address = await new Promise((found, failed) => {
    let said = ''
    firefox.stderr.on('data', (data) => {
      said += data
      const match = /WebDriver BiDi listening on (ws:\/\/\S+)/.exec(said)
      if (match !== null) found(match[1])
    })
    firefox.on('exit', (code) => failed(new Error(`Firefox ended with ${code}: ${said.slice(-2000)}`)))
    firefox.on('error', failed)
  })
  // Node has a WebSocket of its own since 22; the one in Playwright is there anyway.
  const Socket = globalThis.WebSocket ?? createRequire(import.meta.url)('playwright-core/lib/utilsBundle').ws
  const socket = new Socket(`${address}/session`)
  await new Promise((open, failed) => {
    socket.onopen = open
    socket.onerror = () => failed(new Error(`no connection to ${address}`))
  })
  let last = 0
  const waiting = new Map()
  socket.onmessage = ({ data }) => {
    const message = JSON.parse(data)
    const one = waiting.get(message.id)
    waiting.delete(message.id)
    if (message.type === 'error') one?.failed(new Error(`${message.error}: ${message.message}`))
    else one?.done(message.result)
  }
  const send = (method, params = {}) =>
    new Promise((done, failed) => {
      last += 1
      waiting.set(last, { done, failed })
      socket.send(JSON.stringify({ id: last, method, params }))
    })
  await send('session.new', { capabilities: {} })
  const { contexts } = await send('browsingContext.getTree')
  const { context } = contexts[0]
  await send('browsingContext.setViewport', { context, viewport: { width: 1280, height: 800 } })

  /** The value of an expression in the page, as JSON. */
  const evaluate = async (expression) => {
    const asked = { expression: `JSON.stringify(${expression})`, awaitPromise: true, target: { context } }
    const { result, exceptionDetails } = await send('script.evaluate', asked)
    assert.ok(exceptionDetails === undefined, `${expression}: ${exceptionDetails?.text}`)
    return result.type === 'undefined' ? undefined : JSON.parse(result.value)
  }
  const eventually = async (condition, what) => {
    const deadline = Date.now() + PATIENCE
    for (;;) {
      const found = await condition()
      if (found) return found
      assert.ok(
        Date.now() < deadline,
        `not within ${PATIENCE} ms: ${what}; the page says ${await evaluate('document.body.innerText.slice(0, 800)')}`,
      )
      await new Promise((done) => setTimeout(done, 100))
    }
  }
  /** The middle of the first element that is seen, matches and has the text. */
  const placeOf = (selector, text) =>
    evaluate(`(() => {
      for (const one of [...document.querySelectorAll(${JSON.stringify(selector)})].reverse()) {
        const words = (one.getAttribute('aria-label') ?? one.innerText ?? '').trim()
        if (${JSON.stringify(text)} !== '' && words !== ${JSON.stringify(text)}) continue
        one.scrollIntoView({ block: 'center' })
        const box = one.getBoundingClientRect()
        if (box.width > 0 && box.height > 0) return { x: Math.round(box.x + box.width / 2), y: Math.round(box.y + box.height / 2) }
      }
      return null
    })()`)
  const perform = (actions) => send('input.performActions', { context, actions })
  return {
    evaluate,
    eventually,
    open: (url) => send('browsingContext.navigate', { context, url, wait: 'complete' }),
    sees: (text) => eventually(() => evaluate(`document.body.innerText.includes(${JSON.stringify(text)})`), text),
    click: async (selector, text = '') => {
      // What has come to rest: a page that is still being drawn moves its buttons.
      let before
      const place = await eventually(async () => {
        const now = await placeOf(selector, text)
        const rests = now !== null && before?.x === now.x && before?.y === now.y
        before = now
        return rests && now
      }, `${selector} ${text}`)
      const steps = [
        { type: 'pointerMove', ...place },
        { type: 'pointerDown', button: 0 },
        { type: 'pointerUp', button: 0 },
      ]
      await perform([{ type: 'pointer', id: 'mouse', parameters: { pointerType: 'mouse' }, actions: steps }])
    },
    type: (text) =>
      perform([
        {
          type: 'key',
          id: 'keys',
          actions: [...text].flatMap((value) => [
            { type: 'keyDown', value: value === '\n' ? KEYS.Enter : value },
            { type: 'keyUp', value: value === '\n' ? KEYS.Enter : value },
          ]),
        },
      ]),
    press: (...names) => {
      const values = names.map((name) => KEYS[name] ?? name)
      const down = values.map((value) => ({ type: 'keyDown', value }))
      const up = [...values].reverse().map((value) => ({ type: 'keyUp', value }))
      return perform([{ type: 'key', id: 'keys', actions: [...down, ...up] }])
    },
    close: async () => {
      const gone = new Promise((done) => firefox.once('exit', done))
      socket.close()
      firefox.kill('SIGTERM')
      await gone
      rmSync(profile, { recursive: true, force: true })
    },
  }
}
