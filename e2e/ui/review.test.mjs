// What a newcomer tripped over: a page that scrolls into nothing, a command that destroys, a message without content.
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { api, closeBrowser, eventually, makeAgent, makeRepository, makeSandbox, openPage, signIn } from './browser.mjs'

after(closeBrowser)

const lines = (word) => Array.from({ length: 400 }, (_, number) => `${word} ${number}\n`).join('')

test('a page with a long diff ends where the diff ends', async () => {
  await makeRepository('scroll', { 'long.txt': lines('before') }, { change: { 'long.txt': lines('after') } })
  const { number } = await api('POST', '/api/v1/repositories/scroll/pulls', { title: 'Change all', head: 'change' })
  const page = await openPage()
  await signIn(page, `/ui/repositories/scroll/pulls/${number}`)
  // Only what is near is drawn; the rest has its height.
  await page.getByText('before 5', { exact: true }).waitFor()
  const size = await page.evaluate(() => {
    const main = document.querySelector('main')
    return { document: document.documentElement.scrollHeight, window: window.innerHeight, main: main.scrollHeight }
  })
  assert.ok(size.main > 4 * size.window, `the diff is long: ${JSON.stringify(size)}`)
  assert.ok(size.document <= size.window, `only the page's own part scrolls: ${JSON.stringify(size)}`)
  // However far the wheel is turned, the header stays.
  await page.mouse.move(700, 500)
  for (let turn = 0; turn < 30; turn += 1) await page.mouse.wheel(0, 4000)
  await page.getByText('after 399').waitFor()
  assert.equal(await page.evaluate(() => window.scrollY), 0)
  assert.ok(await page.locator('header').first().isVisible())
  assert.deepEqual(page.complaints, [])
  await page.context().close()
})

test('the command that is copied for a sandbox does one thing, and destroys nothing', async () => {
  const { id } = await makeSandbox({ metadata: { name: 'copied' } })
  const page = await openPage()
  await signIn(page, `/ui/sandboxes/${id}`)
  const commands = async () => {
    await page.getByRole('button', { name: 'Copy as a command' }).first().click()
    const texts = await page.getByRole('menuitem').locator('code').allInnerTexts()
    await page.keyboard.press('Escape')
    return texts
  }
  await page.getByRole('button', { name: 'Pause' }).waitFor()
  const running = (await commands()).find((text) => text.startsWith('curl'))
  assert.match(running, new RegExp(`/api/v1/sandboxes/${id}/exec`))
  assert.equal(running.match(/curl /g).length, 1, running)
  assert.doesNotMatch(running, /DELETE|pause/)
  await page.getByRole('button', { name: 'Pause' }).click()
  await page.getByRole('button', { name: 'Resume' }).waitFor()
  const paused = (await commands()).find((text) => text.startsWith('curl'))
  assert.match(paused, new RegExp(`/api/v1/sandboxes/${id}/resume"$`))
  await api('DELETE', `/api/v1/sandboxes/${id}`)
  assert.deepEqual(page.complaints, [])
  await page.context().close()
})

test('a task that needs somebody says which and why', { timeout: 290_000 }, async () => {
  await makeRepository('needy', { 'door.txt': 'closed\n' })
  const agent = await makeAgent('breaks', 'echo no luck; exit 3')
  const { id } = await api('POST', '/api/v1/tasks', {
    title: 'Open <b>that</b> door',
    repository: 'needy',
    agent_id: agent,
  })
  const page = await openPage()
  await signIn(page, '/ui/board')
  await page.getByText('Open <b>that</b> door').waitFor()
  await api('POST', `/api/v1/tasks/${id}/start`, {})
  const said = page.locator('[data-sonner-toast]').filter({ hasText: '“Open <b>that</b> door” needs you' })
  await said.waitFor()
  const attention = await eventually(
    async () => (await api('GET', `/api/v1/tasks/${id}`)).needs_attention,
    'it needs attention',
  )
  assert.ok(attention.message.length > 10, attention.message)
  assert.ok((await said.innerText()).includes(attention.message.slice(0, 60)), await said.innerText())
  await said.getByRole('button', { name: 'Open' }).click()
  await page.waitForURL((url) => url.pathname.endsWith(`/tasks/${id}`))
  assert.deepEqual(page.complaints, [])
  await page.context().close()
})
