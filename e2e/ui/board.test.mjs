// The board in its views: list, order, groups, saved views, many tasks at once; and that typed text is not lost.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { BASE, api, closeBrowser, eventually, makeAgent, openPage, signIn } from './browser.mjs'

const MARK = 'sorted'
const made = []
let agent

before(async () => {
  agent = await makeAgent('lister', 'true')
  for (const [title, more] of [
    [`${MARK} beta`, { priority: 'low', labels: ['ui'] }],
    [`${MARK} alpha`, { priority: 'urgent', labels: ['ui', 'bug'], agent_id: agent }],
    [`${MARK} gamma`, { priority: 'medium', state: 'in_review' }],
  ])
    made.push((await api('POST', '/api/v1/tasks', { title, ...more })).id)
})
after(async () => {
  for (const id of made) await api('DELETE', `/api/v1/tasks/${id}`).catch(() => {})
  await closeBrowser()
})

const titles = async (within) =>
  (await within.getByRole('link', { name: new RegExp(MARK) }).allInnerTexts()).map((text) => text.split('\n')[0])

test('a list is sorted and grouped, its address is the view, and a view is saved and shared', async () => {
  const page = await openPage()
  await signIn(page, `/ui/board?q=${MARK}`)
  await page.getByRole('button', { name: 'List', exact: true }).click()
  const list = page.getByRole('region', { name: 'Tasks', exact: true })
  await list.getByRole('heading', { name: /To do 2/ }).waitFor()
  await list.getByRole('heading', { name: /In review 1/ }).waitFor()
  const display = async (name) => {
    await page.getByRole('button', { name: 'Display' }).click()
    await page.getByRole('menuitemradio', { name }).click()
    await page.keyboard.press('Escape')
  }
  await display('Label')
  await list.getByRole('heading', { name: /No label 1/ }).waitFor()
  await list.getByRole('heading', { name: /bug 1/ }).waitFor()
  await display('No groups')
  await page.getByRole('button', { name: 'Display' }).click()
  await page.getByRole('menuitemradio', { name: 'Priority' }).first().click()
  await page.keyboard.press('Escape')
  await eventually(
    async () => (await titles(list)).join() === [`${MARK} alpha`, `${MARK} gamma`, `${MARK} beta`].join(),
    () => titles(list).then(JSON.stringify),
  )
  await page.getByRole('button', { name: 'Views' }).click()
  await page.getByRole('menuitem', { name: 'Save this view…' }).click()
  const save = page.getByRole('dialog', { name: 'Save this view' })
  await save.getByLabel('Name').fill('By priority')
  await save.getByRole('button', { name: 'Save' }).click()
  const address = page.url()
  await page.getByRole('button', { name: 'By priority' }).click()
  await page.getByRole('menuitem', { name: 'All tasks' }).click()
  await page.getByRole('region', { name: 'To do', exact: true }).waitFor()
  await page.getByRole('button', { name: 'Views' }).click()
  await page.getByRole('menuitem', { name: 'By priority' }).click()
  await list.waitFor()
  const said = (url) => [...new URL(url).searchParams].sort().join()
  await eventually(() => said(page.url()) === said(address), 'the address of the view')
  // Somebody else with the link sees the same.
  const other = await openPage()
  await signIn(other, new URL(address).pathname + new URL(address).search)
  const theirs = other.getByRole('region', { name: 'Tasks', exact: true })
  await theirs.getByRole('link', { name: `${MARK} gamma` }).waitFor()
  assert.deepEqual(await titles(theirs), [`${MARK} alpha`, `${MARK} gamma`, `${MARK} beta`])
  assert.deepEqual([...page.complaints, ...other.complaints], [])
  for (const one of [page, other]) await one.context().close()
})

test('tasks are selected by x and Shift, and moved, labelled, assigned and archived together', async () => {
  const page = await openPage()
  await signIn(page, `/ui/board?q=${MARK}&list=true&sort=title&group=none`)
  const list = page.getByRole('region', { name: 'Tasks', exact: true })
  await list.getByRole('link', { name: `${MARK} alpha` }).focus()
  await page.keyboard.press('x')
  const bar = page.getByRole('region', { name: 'Selected tasks' })
  await bar.getByText('1 selected').waitFor()
  await page.keyboard.press('j')
  await page.keyboard.press('j')
  await page.keyboard.press('Shift+X')
  await bar.getByText('3 selected').waitFor()
  await page.keyboard.press('Escape')
  await bar.waitFor({ state: 'detached' })
  await list.getByRole('checkbox', { name: `Select ${MARK} alpha` }).click({ force: true })
  await list.getByRole('link', { name: `${MARK} beta` }).click({ modifiers: ['Shift'] })
  await bar.getByText('2 selected').waitFor()
  await bar.getByRole('button', { name: 'Label' }).click()
  const dialog = page.getByRole('dialog', { name: 'Label 2 tasks' })
  await dialog.getByLabel('Label').fill('sprint-7')
  await dialog.getByRole('button', { name: 'Add label' }).click()
  const [beta, alpha] = made
  const task = (id) => api('GET', `/api/v1/tasks/${id}`)
  const both = (so) => async () => so(await task(alpha)) && so(await task(beta))
  await eventually(
    both(({ labels }) => labels.includes('sprint-7')),
    'the label',
  )
  assert.deepEqual([...(await task(alpha)).labels].sort(), ['bug', 'sprint-7', 'ui'])
  const select = async () => {
    await list.getByRole('checkbox', { name: `Select ${MARK} alpha` }).click({ force: true })
    await list.getByRole('checkbox', { name: `Select ${MARK} beta` }).click({ force: true })
    await bar.getByText('2 selected').waitFor()
  }
  await bar.waitFor({ state: 'detached' })
  await select()
  await bar.getByLabel('Assign').selectOption({ label: 'lister' })
  await eventually(
    both((one) => one.agent_id === agent),
    'the agent',
  )
  await bar.waitFor({ state: 'detached' })
  await select()
  await bar.getByLabel('Move to').selectOption({ label: 'Done' })
  await eventually(async () => (await task(beta)).state === 'done' && (await task(alpha)).state === 'done', 'the move')
  const toast = page.locator('[data-sonner-toast]').filter({ hasText: 'Moved 2 tasks' })
  await toast.getByRole('button', { name: 'Undo' }).click()
  await eventually(
    async () => (await task(beta)).state === 'todo' && (await task(alpha)).state === 'todo',
    'the way back',
  )
  await bar.waitFor({ state: 'detached' })
  await select()
  // Without a repository it cannot start: that is said before, and each refusal after.
  await bar.getByRole('button', { name: 'Start' }).click()
  const start = page.getByRole('dialog', { name: 'Start 2 tasks?' })
  await start.getByText('2 tasks cannot start yet').waitFor()
  await start.getByRole('button', { name: 'Start' }).click()
  await page.locator('[data-sonner-toast]').filter({ hasText: 'Started 0 of 2 tasks' }).waitFor()
  await bar.getByRole('button', { name: 'Archive' }).click()
  await eventually(
    async () => (await task(beta)).archived_at !== null && (await task(alpha)).archived_at,
    'the archive',
  )
  await list.getByRole('link', { name: `${MARK} alpha` }).waitFor({ state: 'detached' })
  assert.deepEqual(page.complaints, [])
  await page.context().close()
})

test('five hundred tasks as a list are a few rows of the page', async () => {
  const page = await openPage()
  const now = new Date().toISOString()
  const task = (state) => (_, at) => ({
    ...{ id: `${state}${at}`, title: `chore ${at}`, description: '', state, priority: 'medium', labels: ['a', 'b'] },
    ...{ attempts: 0, version: 1, created_at: now, updated_at: now, on_review: 'wait', check_tries: 3 },
  })
  await page.route('**/api/v1/tasks?*', (route) => {
    const state = new URL(route.request().url()).searchParams.get('state')
    return route.fulfill({ json: { items: Array.from({ length: 125 }, task(state)), next: null } })
  })
  await signIn(page, '/ui/board?list=true')
  const list = page.getByRole('region', { name: 'Tasks', exact: true })
  await list.getByRole('heading', { name: /To do 125/ }).waitFor()
  const most = async () => (await list.getByRole('listitem').count()) < 80
  assert.ok(await most(), 'only rows that are seen are drawn')
  await list.evaluate((box) => box.scrollTo(0, box.scrollHeight))
  await list.getByRole('link', { name: 'chore 124' }).waitFor()
  assert.ok(await most(), 'at the end, too')
  await page.goto(`${BASE}/ui/board`)
  await page.getByRole('region', { name: 'To do', exact: true }).getByText('chore 3', { exact: true }).waitFor()
  const nodes = await page.evaluate(() => document.querySelectorAll('*').length)
  assert.ok(nodes < 5000, `${nodes} nodes`)
  await page.context().close()
})

test('a column with a limit says when it is over it', async () => {
  const ids = []
  for (const at of [1, 2, 3])
    ids.push((await api('POST', '/api/v1/tasks', { title: `wip ${at}`, state: 'in_progress' })).id)
  const page = await openPage()
  await signIn(page, '/ui/board?q=wip&wip=2')
  await page.getByRole('heading', { name: 'In progress 3 of 2 over its limit' }).waitFor()
  for (const id of ids) await api('DELETE', `/api/v1/tasks/${id}`)
  await page.context().close()
})

test('typed text survives: a dialog asks on Back, a comment waits in its drawer', async () => {
  const [id] = [made[2]]
  const page = await openPage()
  await signIn(page, '/ui/board')
  await page.getByRole('heading', { name: 'Board' }).waitFor()
  await page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: 'Settings' }).click()
  await page.getByRole('link', { name: 'Agents', exact: true }).click()
  await page.getByRole('button', { name: 'New agent' }).click()
  const form = page.getByRole('dialog', { name: 'New agent' })
  await form.getByLabel('Name').fill('half an agent')
  await page.evaluate(() => history.back())
  await form.getByText('Discard what you typed?').waitFor()
  await form.getByRole('button', { name: 'Keep editing' }).click()
  assert.equal(await form.getByLabel('Name').inputValue(), 'half an agent')
  await page.keyboard.press('Control+k')
  assert.equal(await page.getByPlaceholder('Find a task').count(), 0)
  await page.keyboard.press('Escape')
  await form.getByRole('button', { name: 'Discard' }).click()
  await form.waitFor({ state: 'detached' })

  await page.goto(`${BASE}/ui/board?task=%22${id}%22`)
  const drawer = page.getByRole('dialog', { name: `${MARK} gamma` })
  await drawer.getByLabel('Comment for the agent').fill('half a comment')
  await page.keyboard.press('Escape')
  await drawer.waitFor({ state: 'detached' })
  await page.goto(`${BASE}/ui/board?task=%22${id}%22`)
  assert.equal(await drawer.getByLabel('Comment for the agent').inputValue(), 'half a comment')
  assert.deepEqual(page.complaints, [])
  await page.context().close()
})
