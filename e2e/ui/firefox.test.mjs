// The main flows in Firefox: sign in, the demo up to the merge, keys and palette, a terminal.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { BASE, api, makeSandbox, operatorKey } from './browser.mjs'
import { FIREFOX, hasFirefox, openFirefox } from './firefox.mjs'

test(
  'Firefox: from the sign-in link to a merge, by keys and mouse, and a terminal',
  { timeout: 290_000, skip: hasFirefox ? false : `there is no ${FIREFOX}` },
  async () => {
    const project = await api('POST', '/api/v1/projects', { name: 'in firefox' }, operatorKey())
    const { key } = await api(
      'POST',
      `/api/v1/projects/${project.id}/keys`,
      { name: 'ff', role: 'admin' },
      operatorKey(),
    )
    const { token } = await api('POST', '/api/v1/sign-in-links', undefined, key)
    const page = await openFirefox()
    try {
      await page.open(`${BASE}/ui/#token=${token}`)
      await page.sees('From here to the first pull request')
      assert.ok(!(await page.evaluate('location.href')).includes('token'))
      await page.click('button', 'Try the demo')
      await page.sees('add the tax to the price')
      await page.sees('This is a scripted demo')
      await page.sees('is ready for review')
      await page.click('nav a', 'Changes')
      await page.sees('net + tax')
      assert.equal(await page.evaluate("document.fonts.check('14px Inter')"), true, 'the typeface is there')
      await page.click('button', 'Merge')
      await page.eventually(() => page.evaluate("document.querySelector('[role=dialog]') !== null"), 'the question')
      await page.click('[role=dialog] button', 'Merge')
      await page.sees('Merged')
      const { items } = await api('GET', '/api/v1/repositories/demo-shop/pulls?state=merged', undefined, key)
      assert.equal(items.length, 1)

      // Keys: the board, a new task, the palette.
      await page.press('g')
      await page.press('b')
      await page.eventually(() => page.evaluate("location.pathname === '/ui/board'"), 'the board')
      await page.press('c')
      await page.eventually(() => page.evaluate("document.querySelector('[role=dialog] input') !== null"), 'the form')
      await page.type('made in Firefox')
      await page.press('Escape')
      await page.sees('Discard what you typed?')
      await page.click('[role=dialog] button', 'Discard')
      await page.eventually(() => page.evaluate("document.querySelector('[role=dialog]') === null"), 'no dialog')
      await page.press('Control', 'k')
      await page.eventually(
        () => page.evaluate("document.activeElement?.getAttribute('cmdk-input') !== null"),
        'the palette',
      )
      await page.type('monit\n')
      await page.eventually(() => page.evaluate("location.pathname === '/ui/monitoring'"), 'the page that was found')

      const { id } = await makeSandbox()
      const { token: other } = await api('POST', '/api/v1/sign-in-links')
      await page.open('about:blank')
      await page.open(`${BASE}/ui/sandboxes/${id}/terminal#token=${other}`)
      await page.eventually(
        () => page.evaluate("document.querySelector('[data-terminal=live]') !== null"),
        'a terminal',
      )
      await page.click('[data-terminal=live]')
      await page.type('echo fire$((6 * 7))\n')
      await page.eventually(
        () => page.evaluate("(document.querySelector('.xterm-rows')?.innerText ?? '').includes('fire42')"),
        'what the shell prints',
      )
      await api('DELETE', `/api/v1/sandboxes/${id}`)
    } finally {
      await page.close()
    }
  },
)
