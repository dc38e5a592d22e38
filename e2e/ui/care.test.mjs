// That nothing is lost or misread: text that was not saved, what others changed meanwhile, what could not be asked.
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import {
  BASE,
  KEY,
  api,
  closeBrowser,
  eventually,
  makeSandbox,
  openPage,
  operatorKey,
  screen,
  signIn,
} from './browser.mjs'

after(closeBrowser)

/** Answers what the page is asked by `confirm` from now on, and tells what it was. */
function answering(page, accept) {
  const asked = []
  page.removeAllListeners('dialog')
  page.on('dialog', (dialog) => {
    asked.push(dialog.message())
    void (accept() ? dialog.accept() : dialog.dismiss())
  })
  return asked
}

test('a new value for a secret leaves the hosts that it is for, unless they are taken out', async () => {
  const hosts = async () =>
    (await api('GET', '/api/v1/secrets')).items.find(({ name }) => name === 'bound')?.hosts ?? null
  await api('PUT', '/api/v1/secrets/bound', { value: 'first', hosts: ['api.example.com', '*.example.org'] })
  const page = await openPage()
  await signIn(page, '/ui/settings/secrets')
  const field = page.getByLabel('Only for these hosts')
  await page.getByRole('row').filter({ hasText: 'bound' }).getByRole('button', { name: 'New value' }).click()
  await eventually(
    async () => (await field.inputValue()) === 'api.example.com *.example.org',
    () => field.inputValue(),
  )
  await page.getByLabel('Value', { exact: true }).fill('second')
  await page.getByRole('button', { name: 'Save', exact: true }).click()
  await page.getByText('Saved; the value is not shown again').first().waitFor()
  assert.deepEqual(await hosts(), ['api.example.com', '*.example.org'])
  // By its name alone, too.
  await page.getByLabel('Name').fill('bound')
  await page.getByLabel('Value', { exact: true }).fill('third')
  await field.fill('')
  await page.getByRole('button', { name: 'Save', exact: true }).click()
  await eventually(async () => (await hosts()) === null, hosts)
  await api('DELETE', '/api/v1/secrets/bound')
  assert.deepEqual(page.complaints, [])
  await page.context().close()
})

test('the editor keeps line ends and marks, asks before it writes over others, and before text is lost', async () => {
  const { id } = await makeSandbox({ metadata: { name: 'editor' } })
  const at = `${BASE}/api/v1/sandboxes/${id}/files/home/user`
  const put = (name, body) => fetch(`${at}/${name}`, { method: 'PUT', headers: { 'x-api-key': KEY }, body })
  const get = async (name) =>
    Buffer.from(await (await fetch(`${at}/${name}`, { headers: { 'x-api-key': KEY } })).arrayBuffer())
  const text = '\ufeffone\r\ntwo\r\n'
  await put('windows.txt', text)
  await put('mixed.txt', 'a\r\nb\nc\r')
  const page = await openPage()
  await signIn(page, `/ui/sandboxes/${id}/files`)
  const open = async (name) => {
    await page.getByRole('button', { name, exact: true }).click()
    await page.locator('.cm-content').click()
    await page.keyboard.press('Control+End')
  }
  const save = async () => {
    await page.keyboard.press('Control+s')
    await page.getByText('changed', { exact: true }).waitFor({ state: 'detached' })
  }
  await open('windows.txt')
  await page.keyboard.type('three\n')
  await save()
  assert.deepEqual(await get('windows.txt'), Buffer.from(`${text}three\r\n`))
  await page.keyboard.type('four')
  await save()
  assert.deepEqual(await get('windows.txt'), Buffer.from(`${text}three\r\nfour`), 'its own save is nobody else’s')

  await put('windows.txt', 'somebody else')
  await page.keyboard.type('!')
  await page.keyboard.press('Control+s')
  const changed = page.getByRole('dialog', { name: 'The file has changed' })
  await changed.getByRole('button', { name: 'Cancel' }).click()
  assert.equal((await get('windows.txt')).toString(), 'somebody else')
  let leave = false
  const asked = answering(page, () => leave)
  await page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: 'Board' }).click()
  await eventually(() => asked.length === 1, 'it asks')
  await page.locator('.cm-content', { hasText: 'four!' }).waitFor()
  await page.getByRole('button', { name: 'Save' }).click()
  await changed.getByRole('button', { name: 'Overwrite' }).click()
  await changed.waitFor({ state: 'detached' })
  assert.deepEqual(await get('windows.txt'), Buffer.from(`${text}three\r\nfour!`))
  await page.getByRole('button', { name: 'Back to the directory' }).click()

  await open('mixed.txt')
  await page.keyboard.press('Control+Home')
  await page.keyboard.type('x')
  await save()
  assert.deepEqual(await get('mixed.txt'), Buffer.from('xa\r\nb\nc\r'))
  await page.keyboard.type('y')
  leave = true
  await page.getByRole('button', { name: 'Back to the directory' }).click()
  await page.getByRole('button', { name: 'mixed.txt', exact: true }).waitFor()
  assert.equal(asked.length, 2)
  assert.deepEqual(await get('mixed.txt'), Buffer.from('xa\r\nb\nc\r'))
  assert.deepEqual(page.complaints, [])
  await page.context().close()
  await api('DELETE', `/api/v1/sandboxes/${id}`)
})

test('what ends comes into the list of what ended, and pages that look on say so', async () => {
  const { id } = await makeSandbox({ metadata: { name: 'about to end' } })
  const [live, ended] = [await openPage(), await openPage()]
  await signIn(ended, '/ui/sandboxes')
  await ended.getByLabel('Which sandboxes').selectOption('ended')
  await ended.getByRole('status').filter({ hasText: 'shown' }).waitFor()
  const asked = []
  live.on(
    'request',
    (request) =>
      /\/api\/v1\/.*(\/processes|\/proc\/net)/.test(request.url()) && asked.push(new URL(request.url()).search),
  )
  await signIn(live, `/ui/sandboxes/${id}/processes`)
  await live.getByText('No processes').waitFor()
  await live.getByRole('link', { name: 'Overview' }).click()
  await live.getByText('No open ports').waitFor()
  assert.ok(asked.length >= 3 && asked.every((search) => search === '?watch=true'), asked.join())
  // Both lists know it from then on.
  await live.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: 'Sandboxes' }).click()
  await live.getByRole('link', { name: 'about to end' }).waitFor()
  await api('DELETE', `/api/v1/sandboxes/${id}`)
  await live.getByRole('link', { name: 'about to end' }).waitFor({ state: 'detached' })
  await ended.getByRole('row').filter({ hasText: 'about to end' }).getByText('terminated').waitFor()
  await ended.getByRole('link', { name: 'about to end' }).click()
  await ended.getByRole('heading', { name: 'about to end' }).waitFor()
  assert.match(await ended.title(), /about to end/)
  assert.deepEqual([...live.complaints, ...ended.complaints], [])
  for (const page of [live, ended]) await page.context().close()
})

test('another project is another list, at once', async () => {
  const made = await api('POST', '/api/v1/projects', { name: 'the other one' }, operatorKey())
  const { id } = await makeSandbox({ metadata: { name: 'only in the first' } })
  const { name: first } = await api('GET', '/api/v1/project')
  const page = await openPage()
  await signIn(page, '/ui/', operatorKey())
  await page
    .getByRole('row')
    .filter({ hasText: first })
    .getByRole('button', { name: 'Open', exact: true })
    .first()
    .click()
  await page.getByRole('link', { name: 'only in the first' }).waitFor()
  await page.getByRole('button', { name: /^Project: / }).click()
  await page.getByRole('menuitem', { name: 'the other one' }).click()
  await page.getByText('No live sandboxes').waitFor()
  await page.getByRole('link', { name: 'only in the first' }).waitFor({ state: 'detached' })
  assert.match(page.url(), /\/ui\/sandboxes$/)
  await page.getByRole('button', { name: /^Project: / }).click()
  await page.getByRole('menuitem', { name: first, exact: true }).click()
  await page.getByRole('link', { name: 'only in the first' }).waitFor()
  assert.deepEqual(page.complaints, [])
  await page.context().close()
  await api('DELETE', `/api/v1/sandboxes/${id}`)
  assert.ok(made.id)
})

test('whoever is late with settings keeps what they wrote, and is told', async () => {
  const before = await api('GET', '/api/v1/project/settings')
  const page = await openPage()
  await signIn(page, '/ui/settings')
  const field = page.getByLabel('Longest lifetime (minutes)')
  await field.fill('117')
  // The page hears of it, unless it is faster than the event: both ways must end well.
  await page.route(
    '**/api/v1/project/settings',
    async (route) => {
      if (route.request().method() === 'PUT') await api('PUT', '/api/v1/project/settings', { timeout_s: 1234 })
      await route.continue()
    },
    { times: 1 },
  )
  const form = page.locator('form').filter({ has: field })
  await form.getByRole('button', { name: 'Save' }).click()
  await form.getByRole('alert').waitFor()
  assert.equal(await field.inputValue(), '117')
  await eventually(
    async () => (await page.getByLabel('Time limit of a sandbox (minutes)').inputValue()) === '20.57',
    'what the other wrote',
  )
  assert.ok(await form.getByRole('alert').isVisible(), 'why is still there')
  await form.getByRole('button', { name: 'Save' }).click()
  await page.getByText('Saved; applies to new sandboxes').waitFor()
  const { timeout_s: timeout, max_lifetime_s: most } = await api('GET', '/api/v1/project/settings')
  assert.deepEqual([timeout, most], [1234, 7020])
  const { in_force: _, ...own } = before
  await api('PUT', '/api/v1/project/settings', own)
  assert.deepEqual(page.complaints, [])
  await page.context().close()
})

test('what could not be asked is not taken for good news, nor asked for without a rest', async () => {
  const { id } = await makeSandbox()
  const page = await openPage()
  const refusal = {
    status: 403,
    contentType: 'application/json',
    body: JSON.stringify({ code: 'forbidden', message: 'not now' }),
  }
  await page.route('**/api/v1/budgets*', (route) => route.fulfill(refusal))
  await signIn(page, '/ui/monitoring')
  await page.getByRole('alert').getByText('Could not be checked: budgets.').waitFor()
  assert.equal(await page.getByText('No alerts are firing.').count(), 0)
  await page.unroute('**/api/v1/budgets*')
  await page.getByText('Could not be checked').waitFor({ state: 'detached' })

  let times = 0
  await page.route('**/logs?*', (route) => {
    times += 1
    return route.fulfill(refusal)
  })
  await page.goto(`${BASE}/ui/sandboxes/${id}/logs`)
  await page.getByRole('alert').getByText('Not now').waitFor()
  await page.waitForTimeout(2500)
  assert.ok(times <= 3, `asked ${times} times`)
  await page.unroute('**/logs?*')
  await page.getByRole('button', { name: 'Retry' }).click()
  await page.getByRole('alert').waitFor({ state: 'detached' })
  assert.deepEqual(page.complaints, [])
  await page.context().close()
  await api('DELETE', `/api/v1/sandboxes/${id}`)
})

test('a card whose move is refused goes back', async () => {
  const { id } = await api('POST', '/api/v1/tasks', { title: 'stays where it is', state: 'todo' })
  const page = await openPage()
  await signIn(page, '/ui/board')
  await page.getByLabel('Filter').fill('stays where')
  const column = (name) =>
    page.getByRole('region', { name, exact: true }).getByRole('listitem').filter({ hasText: 'stays where it is' })
  await column('To do').waitFor()
  assert.equal(await page.title(), 'Board · Cofferdam')
  // Neither the move nor what is asked after it gets through.
  await page.route('**/api/v1/tasks**', (route) => route.abort())
  const grip = await page.getByRole('link', { name: 'stays where it is' }).boundingBox()
  const target = await page.getByRole('region', { name: 'Done', exact: true }).boundingBox()
  await page.mouse.move(grip.x + 5, grip.y + 5)
  await page.mouse.down()
  await page.mouse.move(grip.x + 40, grip.y + 20, { steps: 4 })
  await page.mouse.move(target.x + target.width / 2, target.y + 70, { steps: 8 })
  await page.mouse.up()
  await page.getByText('The server does not answer.').first().waitFor()
  await column('To do').waitFor()
  assert.equal(await column('Done').count(), 0)
  await page.unrouteAll({ behavior: 'ignoreErrors' })
  await page.context().close()
  await api('DELETE', `/api/v1/tasks/${id}`)
})

test('an agent is changed, filters are in the address, and a task is put away and deleted', async () => {
  const definition = {
    preset: 'custom',
    command: ['sh', '-c', 'echo one\necho two', '{prompt}'],
    env: { TOKEN_HINT: 'kept' },
  }
  const agent = await api('POST', '/api/v1/agents', { name: 'to be changed', definition })
  const page = await openPage()
  await signIn(page, '/ui/settings/agents')
  await page.getByRole('row').filter({ hasText: 'to be changed' }).getByRole('button', { name: 'Edit' }).click()
  const form = page.getByRole('dialog', { name: 'Edit to be changed' })
  await form.getByText('Command, prompt, environment').click()
  await form.getByLabel('Prompt').fill('Do {{title}}.')
  await form.getByRole('button', { name: 'Save' }).click()
  await form.waitFor({ state: 'detached' })
  const { items: agents } = await api('GET', '/api/v1/agents?limit=200')
  const changed = agents.find(({ id }) => id === agent.id).definition
  assert.deepEqual(
    [changed.command, changed.prompt, changed.env],
    [definition.command, 'Do {{title}}.', { TOKEN_HINT: 'kept' }],
  )
  await api('DELETE', `/api/v1/agents/${agent.id}`)

  const { id } = await api('POST', '/api/v1/tasks', { title: 'put away', state: 'todo', priority: 'urgent' })
  await page.goto(`${BASE}/ui/board`)
  await page.getByLabel('Filter').pressSequentially('put aw')
  await page.getByLabel('Priority', { exact: true }).selectOption('urgent')
  await eventually(
    () => page.url().includes('q=put') && page.url().includes('priority=urgent'),
    () => page.url(),
  )
  await page.reload()
  assert.equal(await page.getByLabel('Filter').inputValue(), 'put aw')
  await page.getByRole('link', { name: 'put away' }).click()
  const drawer = page.getByRole('dialog', { name: 'put away' })
  await drawer.getByRole('button', { name: 'More' }).click()
  await page.getByRole('menuitem', { name: 'Archive' }).click()
  await drawer.getByText('archived', { exact: true }).waitFor()
  assert.ok((await api('GET', `/api/v1/tasks/${id}`)).archived_at)
  await drawer.getByRole('button', { name: 'More' }).click()
  await page.getByRole('menuitem', { name: 'Delete' }).click()
  await page
    .getByRole('dialog', { name: /^Delete/ })
    .getByRole('button', { name: 'Delete', exact: true })
    .click()
  await drawer.waitFor({ state: 'detached' })
  const gone = await fetch(`${BASE}/api/v1/tasks/${id}`, { headers: { 'x-api-key': KEY } })
  assert.equal(gone.status, 404)
  assert.deepEqual(page.complaints, [])
  await page.context().close()
})

test('a paste that is too large is refused whole, and a terminal can be left by keys', async () => {
  const { id } = await makeSandbox()
  const page = await openPage()
  await signIn(page, `/ui/sandboxes/${id}/terminal`)
  await page.locator('[data-terminal=live]').waitFor()
  const paste = (text) =>
    page.locator('.xterm-helper-textarea').evaluate((box, pasted) => {
      const data = new DataTransfer()
      data.setData('text/plain', pasted)
      box.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true }))
    }, text)
  await paste(`echo ${'x'.repeat(1 << 20)}`)
  await eventually(
    async () => (await screen(page)).some((row) => row.includes('bytes of input were not sent')),
    () => screen(page),
  )
  await page.keyboard.type('echo still $((20 + 4))\n')
  await eventually(
    async () => (await screen(page)).some((row) => row.endsWith('still 24')),
    () => screen(page),
  )
  await page.keyboard.press('Control+Shift+Enter')
  assert.equal(await page.evaluate(() => document.activeElement?.getAttribute('aria-pressed')), 'true')
  assert.deepEqual(page.complaints, [])
  await page.context().close()
  await api('DELETE', `/api/v1/sandboxes/${id}`)
})
