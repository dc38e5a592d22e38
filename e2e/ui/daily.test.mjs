// What people look at all day: sessions over tabs, cards that tell, checks and steps that do not lie, keys, nothing typed is lost.
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { BASE, KEY, api, closeBrowser, eventually, makeAgent, makeRepository, openPage, signIn } from './browser.mjs'

after(closeBrowser)

const until = (task, so) =>
  eventually(
    async () => {
      const found = await api('GET', `/api/v1/tasks/${task}`)
      return so(found) && found
    },
    () => api('GET', `/api/v1/tasks/${task}`).then(JSON.stringify),
  )

/** No page is longer than the window: pages scroll inside, under the header. */
async function assertFits(page, what) {
  const [height, seen] = await page.evaluate(() => [document.documentElement.scrollHeight, innerHeight])
  assert.ok(height <= seen, `${what}: the document is ${height} px tall in a window of ${seen}`)
}

test('a second tab is signed in by the first, a sign-out ends both, and a link signs another browser in', async () => {
  const first = await openPage()
  await signIn(first)
  await first.waitForURL(/\/ui\/board$/)
  const second = await first.context().newPage()
  await second.goto(`${BASE}/ui/monitoring`)
  await second.getByRole('heading', { name: 'Monitoring' }).waitFor()
  const kept = await second.evaluate(() => JSON.stringify([localStorage, sessionStorage, document.cookie]))
  assert.ok(!kept.includes(KEY) && !kept.includes('e2b_'), 'no script can read a key')

  await first.context().grantPermissions(['clipboard-read', 'clipboard-write'])
  await first.getByRole('button', { name: 'Account and appearance' }).click()
  await first.getByRole('menuitem', { name: 'Copy a sign-in link' }).click()
  await first.locator('[data-sonner-toast]').filter({ hasText: 'it works once' }).waitFor()
  const link = await first.evaluate(() => navigator.clipboard.readText())
  const elsewhere = await openPage()
  await elsewhere.goto(link)
  await elsewhere.waitForURL(/\/ui\/board$/)
  assert.ok(!elsewhere.url().includes('token'))

  await first.getByRole('button', { name: 'Account and appearance' }).click()
  await first.getByRole('menuitem', { name: 'Sign out' }).click()
  for (const page of [first, second]) await page.getByRole('heading', { name: 'Sign in to Cofferdam' }).waitFor()
  assert.deepEqual(await first.context().cookies(), [])
  await elsewhere.reload()
  await elsewhere.getByRole('heading', { name: 'Board' }).waitFor()
  assert.deepEqual([...first.complaints, ...elsewhere.complaints], [])
  for (const page of [first, elsewhere]) await page.context().close()
})

test('people have names and see their sessions, and a key that an earlier version stored is exchanged', async () => {
  const { key, id } = await api('POST', '/api/v1/keys', { name: 'laptop', role: 'admin', kind: 'person' })
  const page = await openPage()
  await page.addInitScript((key) => {
    if (localStorage.getItem('exchanged') !== null) return
    localStorage.setItem('exchanged', 'yes')
    localStorage.setItem('coffer.session', JSON.stringify({ project: { key, projectId: 'x', role: 'admin' } }))
  }, key)
  await page.goto(`${BASE}/ui/settings/people`)
  await page.getByLabel('Name', { exact: true }).fill('Ada Lovelace')
  assert.ok(!(await page.evaluate(() => JSON.stringify([localStorage, sessionStorage]))).includes(key.slice(4)))
  await page.getByRole('button', { name: 'Save' }).click()
  const people = page.getByRole('table', { name: 'People' })
  await people.getByRole('row', { name: 'Ada Lovelace' }).waitFor()

  await page.getByRole('button', { name: 'Invite a person' }).click()
  const dialog = page.getByRole('dialog')
  await dialog.getByLabel('Name').fill('Grace')
  await dialog.getByRole('button', { name: 'Create the link' }).click()
  const link = await page.getByRole('dialog', { name: 'Sign-in link for Grace' }).locator('code').textContent()
  await page.getByRole('button', { name: 'Done' }).click()
  const grace = await openPage()
  await grace.goto(link)
  await grace.getByRole('button', { name: 'Account and appearance' }).click()
  await grace.getByText('Grace', { exact: true }).waitFor()
  await grace.keyboard.press('Escape')
  await grace.goto(`${BASE}/ui/settings/people`)
  const sessions = grace.getByRole('table', { name: 'Your sessions' })
  await sessions.getByText('this browser').waitFor()
  assert.equal(await sessions.getByRole('row').count(), 2, 'her own, below the head')

  await people.getByRole('row', { name: 'Grace' }).getByRole('button', { name: 'Remove' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Remove' }).click()
  await grace.getByText('You were signed out').waitFor()
  await page.getByRole('button', { name: 'Sign out everywhere' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Sign out everywhere' }).click()
  await page.getByRole('heading', { name: 'Sign in to Cofferdam' }).waitFor()
  await api('DELETE', `/api/v1/keys/${id}`)
  for (const one of [page, grace]) await one.context().close()
})

test(
  'a failed check is red, its output is on the page, and its branch becomes a draft',
  { timeout: 290_000 },
  async () => {
    await makeRepository('ledger', { 'sum.txt': '4\n' })
    const agent = await makeAgent('careless', 'echo guessing; echo 5 > sum.txt')
    const { id } = await api('POST', '/api/v1/tasks', {
      title: 'Add two and two',
      repository: 'ledger',
      agent_id: agent,
      check_command: 'echo the sum is wrong; exit 3',
    })
    await api('POST', `/api/v1/tasks/${id}/start`, {})
    await until(id, (task) => task.needs_attention)
    const page = await openPage()
    await signIn(page, '/ui/board')
    const card = page.getByRole('link', { name: 'Add two and two' })
    await card.getByText('Needs you: Check failed').waitFor()
    await page.getByRole('button', { name: 'Needs you' }).click()
    await card.waitFor()
    await assertFits(page, 'the board')

    await page.goto(`${BASE}/ui/tasks/${id}?tab=details`)
    const steps = page.getByRole('list', { name: 'Steps of attempt 1' }).getByRole('listitem')
    await steps.filter({ hasText: 'failed' }).filter({ hasText: 'Check' }).waitFor()
    await assertFits(page, 'the details')
    const tab = (name) => page.getByRole('navigation', { name: 'Parts of the task' }).getByRole('link', { name })
    await tab('Checks').click()
    await page.getByText('Attempt 1, check 4: failed (exit code 3)').waitFor()
    await page.getByRole('log').getByText('the sum is wrong').waitFor()
    await tab('Changes').click()
    await page.getByRole('button', { name: 'Open a draft pull request' }).click()
    await page.getByRole('region', { name: 'Changes of sum.txt' }).getByText('5', { exact: true }).waitFor()
    await assertFits(page, 'the changes')

    // Two comments are collected and sent together, and the next attempt reads them.
    for (const [line, words] of [
      ['Comment on removed line 1', 'this was right'],
      ['Comment on line 1', 'this is not'],
    ]) {
      await page.getByRole('button', { name: line, exact: true }).focus()
      await page.keyboard.press('Enter')
      await page.getByLabel('Comment on this line').fill(words)
      await page.getByRole('button', { name: 'Add to review' }).click()
    }
    assert.equal((await api('GET', `/api/v1/tasks/${id}/messages`)).items.length, 0)
    await page.getByRole('button', { name: 'Send 2 comments', exact: true }).click()
    await eventually(async () => (await api('GET', `/api/v1/tasks/${id}/messages`)).items.length === 2, 'both are sent')
    assert.deepEqual(page.complaints, [])
    await page.context().close()
  },
)

test('keys make, find and move; dropping on In progress offers to start; typed text is not lost', async () => {
  const { id } = await api('POST', '/api/v1/tasks', { title: 'keyed task', state: 'in_review' })
  const page = await openPage()
  await signIn(page, '/ui/monitoring')
  await page.getByRole('heading', { name: 'Monitoring' }).waitFor()
  await page.keyboard.press('g')
  await page.keyboard.press('b')
  await page.getByRole('heading', { name: 'Board' }).waitFor()
  await page.keyboard.press('?')
  await page.getByRole('dialog', { name: 'Keyboard shortcuts' }).waitFor()
  await page.keyboard.press('Escape')
  await page.keyboard.press('c')
  const form = page.getByRole('dialog', { name: 'New task' })
  await form.getByLabel('Title').fill('half a thought')
  await page.keyboard.press('Escape')
  await form.getByRole('button', { name: 'Keep editing' }).click()
  assert.equal(await form.getByLabel('Title').inputValue(), 'half a thought')
  await page.mouse.click(5, 5)
  await form.getByRole('button', { name: 'Discard' }).click()
  await form.waitFor({ state: 'detached' })

  await page.keyboard.press('/')
  await page.keyboard.type('keyed')
  const card = page.getByRole('link', { name: 'keyed task' })
  const column = (name) =>
    page.getByRole('region', { name, exact: true }).getByRole('listitem').filter({ hasText: 'keyed task' })
  await column('In review').waitFor()
  await card.focus()
  const told = page.locator('[id^="DndLiveRegion"]')
  await page.keyboard.press('Space')
  await told.filter({ hasText: /^(Picked up keyed task|keyed task is over)/ }).waitFor({ state: 'attached' })
  await page.keyboard.press('ArrowRight')
  await told.filter({ hasText: /keyed task is over .*Done/ }).waitFor({ state: 'attached' })
  await page.keyboard.press('Space')
  await column('Done').waitFor()
  await card.focus()
  await page.keyboard.press('Space')
  await told.filter({ hasText: /^(Picked up keyed task|keyed task is over)/ }).waitFor({ state: 'attached' })
  // A key that comes before the columns are measured moves nothing.
  await eventually(async () => {
    await page.keyboard.press('ArrowLeft')
    const left = told.filter({ hasText: /keyed task is over .*In review/ })
    return left.waitFor({ state: 'attached', timeout: 1500 }).then(
      () => true,
      () => false,
    )
  }, 'the card is over the column on its left')
  await page.keyboard.press('Space')
  await column('In review').waitFor()
  assert.equal((await until(id, (task) => task.state === 'in_review')).state, 'in_review')

  await api('PATCH', `/api/v1/tasks/${id}`, { state: 'todo' })
  await column('To do').waitFor()
  const from = await card.boundingBox()
  const to = await page.getByRole('region', { name: 'In progress', exact: true }).boundingBox()
  await page.mouse.move(from.x + 20, from.y + 10)
  await page.mouse.down()
  await page.mouse.move(from.x + 60, from.y + 20, { steps: 4 })
  await page.mouse.move(to.x + to.width / 2, to.y + 80, { steps: 8 })
  await page.mouse.up()
  const start = page.getByRole('dialog', { name: 'Start this task?' })
  // For 50 ms after a drag the board takes clicks for its end; nobody is that quick but a test.
  await eventually(async () => {
    if ((await start.count()) > 0) await start.getByRole('button', { name: 'Only move it' }).click()
    return (await start.count()) === 0
  }, 'the dialog is gone')
  await column('In progress').waitFor()
  await page.keyboard.press('j')
  await page.keyboard.press('Enter')
  await page.getByRole('dialog', { name: 'keyed task' }).waitFor()
  await page.keyboard.press('Escape')
  await page.keyboard.press('Control+k')
  await page.getByPlaceholder('Find a task').fill('task keyed')
  await page.getByRole('option', { name: /keyed task/ }).click()
  await page.waitForURL(new RegExp(`/ui/tasks/${id}`))
  assert.deepEqual(page.complaints, [])
  await page.context().close()
  await api('DELETE', `/api/v1/tasks/${id}`)
})

test('a page that is not loaded yet waits for a server that is away', async () => {
  const page = await openPage()
  await signIn(page, '/ui/sandboxes')
  await page.context().setOffline(true)
  await page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: 'Audit' }).click()
  // Longer than the first look for the server takes.
  await page.waitForTimeout(3000)
  await page.getByRole('heading', { name: 'Sandboxes' }).waitFor()
  await page.context().setOffline(false)
  await page.getByRole('heading', { name: 'Audit' }).waitFor()
  await page.context().close()
})

test('the work of an agent is a conversation: lines that open, a plan, a search, and the raw output behind a switch', async () => {
  const { id } = await api('POST', '/api/v1/tasks', { title: 'talk it through', state: 'in_review' })
  const bodies = [
    { kind: 'person', author: 'ada', text: { text: 'Please use `Decimal`.' }, file: 'money.py', line: 3 },
    { kind: 'started', model: 'opus' },
    { kind: 'message', text: { text: 'I will **look** first.\n\n- one\n- <img src=x onerror=alert(1)>' } },
    {
      kind: 'command',
      command: { text: 'make test' },
      state: 'failed',
      exit_code: 2,
      output: { text: 'two tests failed\nmake: *** [test] Error 1' },
    },
    { kind: 'edit', path: 'money.py', edit: 'changed', state: 'done', diff: { text: '-float\n+Decimal' } },
    {
      kind: 'todos',
      items: [
        { text: 'exact cents', state: 'done' },
        { text: 'name the text', state: 'in_progress' },
      ],
    },
    { kind: 'tool', name: 'Read', arguments: { text: '{"file_path":"src/a.py"}' }, state: 'running' },
    { kind: 'check', command: { text: 'make check' }, passed: false, exit_code: 1, output: { text: 'not formatted' } },
  ]
  const now = new Date().toISOString()
  const items = bodies.map((body, at) => ({
    ...body,
    ...{ sequence: at + 1, change: at + 1, attempt: 1, turn: at < 5 ? 1 : 2, run_id: 'r', subagent: false },
    ...{ at: now, updated_at: now },
  }))
  const page = await openPage()
  await page.route(`**/api/v1/tasks/${id}/transcript?*`, (route) => route.fulfill({ json: { items } }))
  await signIn(page, `/ui/tasks/${id}`)
  const log = page.getByRole('log', { name: 'Conversation' })
  await log.getByText('Attempt 1, turn 2').waitFor()
  await log.getByText('look', { exact: true }).waitFor()
  await log.getByText('<img src=x onerror=alert(1)>').waitFor()
  await log.getByText('not formatted').waitFor()
  assert.equal(await log.getByText('two tests failed').isVisible(), false)
  // Why it failed is mostly its last line.
  await log.getByText('make: *** [test] Error 1').waitFor()
  await log.getByText('make test').first().click()
  await log.getByText('two tests failed').waitFor()
  await log.locator('[data-entry=edit]').getByText('money.py').click()
  await log.locator('[data-entry=edit]').getByText('Decimal').waitFor()
  await page.getByText('Plan: 1 of 2').waitFor()
  await log.locator('[data-entry=tool]').getByText('src/a.py', { exact: true }).waitFor()
  await page.getByLabel('Search the conversation').fill('formatted')
  await log.locator('[data-entry=edit]').waitFor({ state: 'detached' })
  await log.getByText('not formatted').waitFor()
  await page.getByRole('switch', { name: 'Raw output' }).click()
  await page.getByText('No attempts yet.').waitFor()
  await assertFits(page, 'the conversation')
  await page.getByRole('switch', { name: 'Raw output' }).click()
  await page.getByLabel('Search the conversation').fill('')
  await log.locator('[data-entry=edit]').waitFor()
  if (process.env.COFFER_E2E_SCREENSHOTS)
    await page.screenshot({ path: `${process.env.COFFER_E2E_SCREENSHOTS}/conversation.png` })
  assert.deepEqual(page.complaints, [])
  await page.context().close()
  await api('DELETE', `/api/v1/tasks/${id}`)
})
