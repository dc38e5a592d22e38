// Defects that people met, each named for what they saw.
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import {
  BASE,
  KEY,
  api,
  closeBrowser,
  makeAgent,
  makeRepository,
  makeSandbox,
  openPage,
  operatorKey,
  signIn,
} from './browser.mjs'

after(closeBrowser)

test('a dialog over the drawer darkens the drawer too', async () => {
  const { id } = await api('POST', '/api/v1/tasks', { title: 'two layers' })
  const page = await openPage()
  await signIn(page, `/ui/board?task=%22${id}%22`)
  const drawer = page.getByRole('dialog', { name: 'two layers' })
  const head = await drawer.getByText('two layers').boundingBox()
  await drawer.getByRole('button', { name: 'Edit', exact: true }).click()
  await page.getByRole('dialog', { name: 'Edit the task' }).waitFor()
  const covered = await page.evaluate(
    ([x, y]) => document.elementFromPoint(x, y)?.closest('[role=dialog]') === null,
    [head.x + 2, head.y + 2],
  )
  assert.ok(covered, 'what is behind the dialog cannot be pressed')
  await page.context().close()
  await api('DELETE', `/api/v1/tasks/${id}`)
})

test('a change that did not arrive is not said to be tried again', async () => {
  const page = await openPage()
  await signIn(page, '/ui/board')
  await page.getByLabel('New task to do').waitFor()
  await page.route('**/api/v1/tasks', (route) =>
    route.request().method() === 'POST' ? route.abort() : route.continue(),
  )
  await page.getByLabel('New task to do').fill('never arrives')
  await page.keyboard.press('Enter')
  const toast = page.locator('[data-sonner-toast]').filter({ hasText: 'The server does not answer' })
  await toast.waitFor()
  const text = await toast.innerText()
  assert.match(text, /send it again/)
  assert.doesNotMatch(text, /tr(ies|ied) again/)
  assert.equal(await page.getByLabel('New task to do').inputValue(), 'never arrives', 'what was typed is still there')
  await page.context().close()
})

test('an operator without a project sees the server, and no wall of refusals', async () => {
  const page = await openPage()
  await signIn(page, '/ui/', operatorKey())
  await page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: 'Monitoring' }).click()
  await page.getByRole('heading', { name: 'The whole server' }).waitFor()
  await page.waitForLoadState('networkidle')
  assert.equal(await page.getByText('No API key').count(), 0)
  assert.deepEqual(page.complaints, [])
  await page.context().close()
})

test(
  'entries of a competition show what their agents cost, and one that waits for a pick needs you',
  { timeout: 290_000 },
  async () => {
    await makeRepository('priced', { 'a.txt': 'a\n' })
    const result = JSON.stringify({ type: 'result', subtype: 'success', result: 'done', total_cost_usd: 1.25 })
    const command = ['sh', '-c', `echo b > a.txt; printf '%s\\n' '${result}'`, 'agent', '{prompt}']
    const definition = { preset: 'custom', command, output: 'claude_stream' }
    const { id: agent } = await api('POST', '/api/v1/agents', { name: 'priced', definition })
    const task = await api('POST', '/api/v1/tasks', { title: 'a priced race', repository: 'priced' })
    const entries = [
      { agent_id: agent, label: 'one' },
      { agent_id: agent, label: 'two' },
    ]
    await api('POST', `/api/v1/tasks/${task.id}/start`, { compete: { entries, rule: 'manual' } })
    const page = await openPage()
    await signIn(page, '/ui/board?q=priced&waiting=true')
    await page.getByRole('link', { name: 'a priced race' }).getByText('Needs you: Pick a winner').waitFor()
    const [fork] = (await api('GET', `/api/v1/sandboxes/fork?task_id=${task.id}`)).items
    await page.goto(`${BASE}/ui/forks/${fork.id}`)
    await page.getByRole('region', { name: 'Fork 1: one' }).getByText('1.25').first().waitFor()
    await page.getByText(/2\.50/).first().waitFor()
    assert.deepEqual(page.complaints, [])
    await page.context().close()
    await api('POST', `/api/v1/sandboxes/fork/${fork.id}/cancel`).catch(() => {})
  },
)

test('files are in the order that people count in', async () => {
  const { id } = await makeSandbox()
  for (const name of ['f10.txt', 'f2.txt', 'f1.txt'])
    await fetch(`${BASE}/api/v1/sandboxes/${id}/files/home/user/${name}`, {
      method: 'PUT',
      headers: { 'x-api-key': KEY },
      body: 'x\n',
    })
  const page = await openPage()
  await signIn(page, `/ui/sandboxes/${id}/files`)
  await page.getByRole('button', { name: 'f10.txt', exact: true }).waitFor()
  const names = (await page.getByRole('button', { name: /^f\d+\.txt$/ }).allInnerTexts()).map((text) => text.trim())
  assert.deepEqual(names, ['f1.txt', 'f2.txt', 'f10.txt'])
  await page.context().close()
  await api('DELETE', `/api/v1/sandboxes/${id}`)
})

test('on a phone the buttons of tables are on the screen', async () => {
  const { id } = await makeSandbox()
  await fetch(`${BASE}/api/v1/sandboxes/${id}/files/home/user/a-file-with-a-name-of-some-length.txt`, {
    method: 'PUT',
    headers: { 'x-api-key': KEY },
    body: 'x\n',
  })
  await makeAgent('an agent with a name', 'true')
  const page = await openPage({ viewport: { width: 390, height: 844 } })
  await signIn(page, '/ui/settings/keys')
  for (const [path, button] of [
    ['/settings/keys', 'Revoke'],
    ['/settings/agents', 'Remove'],
    [`/sandboxes/${id}/files`, 'Delete a-file-with-a-name-of-some-length.txt'],
  ]) {
    await page.goto(`${BASE}/ui${path}`)
    const last = page.getByRole('button', { name: button }).last()
    await last.waitFor()
    const { x, width } = await last.boundingBox()
    assert.ok(x >= 0 && x + width <= 390, `${path}: ${button} ends at ${x + width}`)
  }
  await page.context().close()
  await api('DELETE', `/api/v1/sandboxes/${id}`)
})
