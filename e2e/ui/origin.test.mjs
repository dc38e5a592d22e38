// The web UI and a hostile sandbox below one registrable domain, where they share a partition of the browser's cache.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { after, before, test } from 'node:test'
import { BASE, KEY, SITE, api, browser, closeBrowser, eventually, makeSandbox } from './browser.mjs'

const { port } = new URL(BASE)
const APP = `http://app.${SITE}:${port}`

// Answers every path with a script that a cache may keep for good, and whatever else it would like to leave behind.
const HOSTILE = `
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        is_page = self.path == "/page"
        body = b"<!doctype html><title>hostile</title>" if is_page else b"window.pwned = true"
        if self.path == "/headers":
            body = str(self.headers).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if is_page else "text/javascript")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "public, max-age=31536000, immutable")
        self.send_header("Access-Control-Allow-Origin", "*")
        self.send_header("Set-Cookie", "planted=1; Path=/")
        self.send_header("Set-Cookie", "coffer_session=" + "0" * 64 + "; Domain=SITE; Path=/")
        self.send_header("Set-Cookie", "tossed=1; Domain=SITE; Path=/")
        self.end_headers()
        self.wfile.write(body)
ThreadingHTTPServer(("", 8000), Answer).serve_forever()
`.replaceAll('SITE', SITE)

let id

before(async () => {
  ;({ id } = await makeSandbox())
  const files = `${BASE}/api/v1/sandboxes/${id}/files/tmp`
  for (const [name, body] of [
    ['hostile.py', HOSTILE],
    ['signed.js', 'window.pwned = true'],
  ]) {
    const put = await fetch(`${files}/${name}`, { method: 'PUT', headers: { 'x-api-key': KEY }, body })
    assert.ok(put.ok, await put.text())
  }
  await api('POST', `/api/v1/sandboxes/${id}/exec`, { command: 'python3 /tmp/hostile.py', background: true })
  const headers = { 'e2b-sandbox-id': id, 'e2b-sandbox-port': '8000' }
  await eventually(async () => (await fetch(`${BASE}/page`, { headers })).ok, 'the hostile server answers')
})

after(async () => {
  await api('DELETE', `/api/v1/sandboxes/${id}`)
  await closeBrowser()
})

/** Fetches from a page, addressed to the sandbox by headers; tells the status and what came. */
const fetchByHeaders = (page, url) =>
  page.evaluate(
    async ([url, id]) => {
      const headers = { 'E2b-Sandbox-Id': id, 'E2b-Sandbox-Port': '8000' }
      const answer = await fetch(url, { headers, cache: 'reload', credentials: 'same-origin' })
      return [answer.status, (await answer.text()).includes('pwned')]
    },
    [url, id],
  )

test('a page in a sandbox puts nothing of its own into the cache or the cookies of the web UI', async () => {
  const index = await (await fetch(`${BASE}/ui/`)).text()
  const named = [...index.matchAll(/<(?:script|link)[^>]*(?:src|href)="(\/ui\/[^"]+\.(?:js|css))"[^>]*>/g)]
  assert.ok(named.length >= 3, 'index.html names its files')
  for (const [tag] of named) assert.match(tag, / integrity="sha384-/, 'a browser runs it only as it was built')

  const context = await (await browser()).newContext()
  const hostile = await context.newPage()
  await hostile.goto(`http://8000-${id}.sandboxes.${SITE}:${port}/page`)
  for (const path of ['/ui/', '/ui/theme.js', ...named.map(([, path]) => path), '/', '/api/v1/me', '/sandboxes']) {
    assert.deepEqual(await fetchByHeaders(hostile, `${APP}${path}`), [400, false], path)
  }

  // The same from within the origin, as a script that got in would.
  const page = await context.newPage()
  const errors = []
  page.on('pageerror', (error) => errors.push(error.message))
  await page.goto(`${APP}/ui/`)
  await page.getByLabel('API key').fill(KEY)
  await page.getByRole('button', { name: 'Sign in' }).click()
  await page.locator('header').waitFor()
  assert.deepEqual(await fetchByHeaders(page, '/ui/theme.js'), [400, false])
  assert.deepEqual(await fetchByHeaders(page, '/elsewhere.js'), [200, true], 'programs reach the sandbox')
  const kept = await page.evaluate(async () => {
    const cached = await fetch('/elsewhere.js', { cache: 'only-if-cached', mode: 'same-origin' }).catch(() => undefined)
    return cached?.ok ?? false
  })
  assert.equal(kept, false, 'but their answers are not stored')

  await page.reload()
  await page.locator('header').waitFor()
  assert.equal(await page.evaluate(() => window.pwned), undefined)
  const cookies = (await context.cookies(APP)).map(({ name, httpOnly, sameSite }) => [name, httpOnly, sameSite])
  assert.deepEqual(cookies, [['coffer_session', true, 'Strict']], 'the UI has its own cookie alone')
  assert.deepEqual(errors, [])
  await context.close()
})

test('a page in a sandbox below the domain of the web UI gets nothing from the session of the browser', async () => {
  const context = await (await browser()).newContext()
  const page = await context.newPage()
  await page.goto(`${APP}/ui/`)
  await page.getByLabel('API key').fill(KEY)
  await page.getByRole('button', { name: 'Sign in' }).click()
  await page.locator('header').waitFor()
  const [{ value: cookie }] = (await context.cookies(APP)).filter(({ name }) => name === 'coffer_session')
  const links = async () =>
    (await api('GET', '/api/v1/keys')).items.filter(({ prefix }) => prefix.startsWith('link_')).length
  const before = await links()

  const hostile = await context.newPage()
  await hostile.goto(`http://8000-${id}.sandboxes.${SITE}:${port}/page`)
  const said = await hostile.evaluate(async (app) => {
    const fetched = async (path, init) => {
      try {
        const answer = await fetch(`${app}${path}`, init)
        return [answer.status, await answer.text().catch(() => '')]
      } catch (error) {
        return ['blocked', String(error)]
      }
    }
    const included = { credentials: 'include' }
    const half = { 'x-coffer-session': '0'.repeat(32) }
    const all = {
      read: await fetched('/api/v1/me', included),
      readHeader: await fetched('/api/v1/me', { ...included, headers: half }),
      write: await fetched('/api/v1/sign-in-links', { ...included, method: 'POST', mode: 'no-cors' }),
      withoutCookies: await fetched('/api/v1/me', { headers: half }),
    }
    all.socket = await new Promise((done) => {
      const address = `${app.replace('http', 'ws')}/api/v1/events/ws`
      const socket = new WebSocket(address, ['coffer.events.v1', `coffer.session.${'0'.repeat(32)}`])
      socket.onopen = () => done('open')
      socket.onerror = () => done('refused')
    })
    return all
  }, APP)
  assert.equal(said.read[0], 'blocked', JSON.stringify(said))
  assert.equal(said.readHeader[0], 'blocked', JSON.stringify(said))
  assert.ok(!JSON.stringify(said).includes('project'), JSON.stringify(said))
  // Refused by its origin, before anything looks for a cookie.
  assert.equal(said.withoutCookies[0], 403, JSON.stringify(said))
  assert.equal(said.socket, 'refused')

  // A form is sent with the cookie of a site, were it not `SameSite`; it has no other half either way.
  await hostile.evaluate((app) => {
    const form = Object.assign(document.createElement('form'), {
      method: 'POST',
      action: `${app}/api/v1/sign-in-links`,
    })
    document.body.append(form)
    form.submit()
  }, APP)
  await hostile.waitForURL(`${APP}/**`)
  assert.match(await hostile.locator('body').innerText(), /unauthorized|no API key/)
  assert.equal(await links(), before, 'nothing was created')

  // Cookies above the sandbox's host: those that the server can see are gone, and what a script plants fits no page.
  await hostile.goto(`http://8000-${id}.sandboxes.${SITE}:${port}/page`)
  await hostile.evaluate((site) => {
    for (const path of ['/', '/api', '/api/v1']) {
      document.cookie = `coffer_session=${'0'.repeat(64)}; Domain=${site}; Path=${path}`
      document.cookie = `__Host-coffer=${'0'.repeat(64)}; Domain=${site}; Path=${path}`
    }
  }, SITE)
  const names = (await context.cookies(`${APP}/api/v1/me`)).map(({ name }) => name)
  assert.ok(!names.includes('tossed') && !names.includes('__Host-coffer'), names.join())
  await page.reload()
  await page.locator('header').waitFor()
  await page.getByRole('button', { name: 'Account and appearance' }).waitFor()
  await page.goto(`${APP}/ui/settings/people`)
  await page.getByText('this browser').waitFor()

  // What the browser sends to a sandbox has nothing of the session in it, also at the UI's own address.
  const headers = await page.evaluate(
    async ([id]) => {
      const named = { 'E2b-Sandbox-Id': id, 'E2b-Sandbox-Port': '8000', 'X-Coffer-Session': '1'.repeat(32) }
      return (await fetch('/headers', { headers: named, credentials: 'include' })).text()
    },
    [id],
  )
  assert.match(headers, /host/i)
  assert.ok(!headers.includes(cookie) && !/coffer.session/i.test(headers), headers)

  // No frame shows the UI.
  await hostile.evaluate((app) => {
    document.body.append(Object.assign(document.createElement('iframe'), { src: `${app}/ui/board` }))
  }, APP)
  const framed = await eventually(() => hostile.frames().find((frame) => frame !== hostile.mainFrame()), 'a frame')
  await eventually(() => framed.url() !== 'about:blank', 'the frame was loaded')
  assert.ok(!framed.url().startsWith(APP), `the UI is in a frame: ${framed.url()}`)
  await context.close()
})

test('a script that a page loads later runs only as it was built', async () => {
  const index = await (await fetch(`${BASE}/ui/`)).text()
  const later = [...index.matchAll(/"(\/ui\/assets\/[^"]+\.js)":"sha384-/g)].map(([, path]) => path)
  const unnamed = later.filter((path) => !index.includes(`src="${path}"`) && !index.includes(`href="${path}"`))
  assert.ok(unnamed.length > 10, 'the import map names the scripts of pages')

  const context = await (await browser()).newContext()
  const page = await context.newPage()
  await page.goto(`${APP}/ui/`)
  const load = (path) =>
    page.evaluate(
      (path) =>
        import(path).then(
          () => 'ran',
          () => 'refused',
        ),
      path,
    )
  assert.equal(await load(unnamed[0]), 'ran')
  // As from a cache that somebody poisoned.
  const body = `window.pwned = true;${await (await fetch(`${BASE}${unnamed[1]}`)).text()}`
  await context.route(`**${unnamed[1]}`, (route) => route.fulfill({ contentType: 'text/javascript', body }))
  assert.equal(await load(unnamed[1]), 'refused')
  assert.equal(await page.evaluate(() => window.pwned), undefined)
  await context.close()
})

test('a signed file does not run as a script, a style or a worker of the web UI', async () => {
  const { envdAccessToken: token } = await api('GET', `/sandboxes/${id}`)
  const digest = createHash('sha256').update(`/tmp/signed.js:read::${token}`).digest('base64').replace(/=+$/, '')
  const url = `/files?path=/tmp/signed.js&signature=${encodeURIComponent(`v1_${digest}`)}`
  assert.equal(await (await fetch(`${BASE}${url}`)).text(), 'window.pwned = true', 'the signature is good')
  for (const dest of ['script', 'style', 'worker', 'serviceworker']) {
    const refused = await fetch(`${BASE}${url}`, { headers: { 'sec-fetch-dest': dest } })
    assert.equal(refused.status, 403, dest)
  }

  const context = await (await browser()).newContext()
  const page = await context.newPage()
  await page.goto(`${APP}/ui/`)
  const blocked = await page.evaluate(
    (url) =>
      new Promise((done) => {
        document.addEventListener('securitypolicyviolation', (event) => done(event.effectiveDirective), { once: true })
        const script = Object.assign(document.createElement('script'), { src: url })
        script.addEventListener('load', () => done('it ran'))
        document.head.append(script)
      }),
    url,
  )
  assert.equal(blocked, 'script-src-elem')
  assert.equal(await page.evaluate(() => window.pwned), undefined)
  // The page of the API's description has a policy of its own, and works under it.
  await page.goto(`${APP}/api/v1/docs`)
  await page.locator('summary', { hasText: '/api/v1/sandboxes' }).first().waitFor()
  await context.close()
})
