// Reviewing: long diffs stay small pages in colour, comments are threads, and a conflict is seen, handed to the agent and merged.
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import {
  BASE,
  api,
  closeBrowser,
  eventually,
  makeAgent,
  makeRepository,
  nextFrame,
  openPage,
  signIn,
} from './browser.mjs'

after(closeBrowser)

/** What the page may have at any time, however long the diff is. */
const MOST_NODES = 5000

const count = (page) => page.evaluate(() => document.querySelectorAll('*').length)

/** Scrolls through the page, and tells the most nodes that it ever had. */
async function mostNodes(page) {
  let most = await count(page)
  await page.mouse.move(900, 600)
  for (let turn = 0; turn < 25; turn += 1) {
    await page.mouse.wheel(0, 2500)
    await nextFrame(page)
    await nextFrame(page)
    most = Math.max(most, await count(page))
  }
  return most
}

test('a diff of 150 files and one of 2,500 lines are small pages, in colour, with addresses of lines', async (t) => {
  const numbers = (length) => Array.from({ length }, (_, at) => at)
  const before = {}
  const changed = {}
  for (const file of numbers(150)) {
    const lines = numbers(30).map((line) => `const value_${line} = compute(${line}, "${file}"); // line ${line}`)
    before[`src/mod_${file}/file_${file}.ts`] = `${lines.join('\n')}\n`
    const now = lines.map((line, at) => (at >= 5 && at < 20 ? line.replace('compute', 'calculate') : line))
    changed[`src/mod_${file}/file_${file}.ts`] = `${now.join('\n')}\n`
  }
  const functions = numbers(2500).map((at) => `def function_${at}(a, b): return a + b * ${at}  # number ${at}`)
  const big = { 'big.py': `${functions.join('\n')}\n`, 'data.js': `var x = [${'"a",'.repeat(60_000)}];\n` }
  await makeRepository('wide', before, { many: changed, big })
  for (const head of ['many', 'big']) await api('POST', '/api/v1/repositories/wide/pulls', { title: head, head })
  const page = await openPage()
  await signIn(page, '/ui/repositories/wide/pulls/1')
  await page.locator('.hl-k').first().waitFor()
  await page.locator('.hl-s').first().waitFor()
  const many = await mostNodes(page)
  t.diagnostic(`150 files: at most ${many} nodes`)
  assert.ok(many <= MOST_NODES, `${many} nodes for 150 files`)
  // The keys go from file to file, also to those that are not drawn.
  await page.evaluate(() => document.querySelector('main').scrollTo(0, 0))
  await page.keyboard.press('n')
  await page.getByRole('region', { name: 'Changes of src/mod_0/file_0.ts' }).waitFor()

  // More of a file is read at the commit that is shown.
  const first = page.getByRole('region', { name: 'Changes of src/mod_0/file_0.ts' })
  await first.getByRole('button', { name: 'Show 2 lines' }).click()
  await first.getByText('compute(0, "0")').waitFor()

  // A line that is far away has an address.
  await page.goto(`${BASE}/ui/repositories/wide/pulls/2#file-big.pyR2301`)
  const line = page.getByText('def function_2300(a, b)')
  await line.waitFor()
  await eventually(() => line.isVisible(), 'the line is shown')
  const place = await line.boundingBox()
  assert.ok(place.y > 0 && place.y < 900, `it is in sight: ${JSON.stringify(place)}`)
  await page.getByRole('region', { name: 'Changes of big.py' }).locator('.hl-k').first().waitFor()
  const long = await mostNodes(page)
  t.diagnostic(`2,500 lines: at most ${long} nodes`)
  assert.ok(long <= MOST_NODES, `${long} nodes for 2,500 lines`)
  assert.deepEqual(page.complaints, [])
  await page.context().close()
})

test('comments on a line are a thread: answered, edited, resolved, deleted', async () => {
  await makeRepository('talk', { 'door.py': 'x = 1\n' }, { change: { 'door.py': 'x = 2\n' } })
  await api('POST', '/api/v1/repositories/talk/pulls', { title: 'Use `two`', head: 'change' })
  const page = await openPage()
  await signIn(page, '/ui/repositories/talk/pulls/1')
  await page.getByRole('status', { name: 'Mergeability' }).getByText('It can be merged').waitFor()
  await page.getByRole('button', { name: 'Comment on line 1' }).focus()
  await page.keyboard.press('Enter')
  await page.getByLabel('Comment on this line').fill('why **two**?')
  await page.keyboard.press('Control+Enter')
  const diff = page.getByRole('region', { name: 'Changes of door.py' })
  await diff.locator('strong').getByText('two').waitFor()
  await diff.getByRole('button', { name: 'Reply' }).click()
  await diff.getByRole('textbox', { name: 'Reply' }).fill('one was taken')
  await page.keyboard.press('Control+Enter')
  await diff.getByRole('article').getByText('one was taken').waitFor()
  const reply = diff.getByRole('article').filter({ hasText: 'one was taken' })
  await reply.hover()
  await reply.getByRole('button', { name: 'Edit the comment' }).click()
  await diff.getByRole('textbox', { name: 'Edit the comment' }).fill('one was sold')
  await page.keyboard.press('Control+Enter')
  await diff.getByRole('article').getByText('one was sold').waitFor()
  await page.getByText('1 open thread').waitFor()
  await diff.getByRole('button', { name: 'Resolve' }).click()
  await diff.getByText('Resolved by You').waitFor()
  await diff.getByRole('article').getByText('one was sold').waitFor({ state: 'detached' })
  await diff.getByRole('button', { name: 'Show', exact: true }).click()
  await diff.getByRole('button', { name: 'Reopen' }).click()
  await diff.getByRole('button', { name: 'Resolve' }).waitFor()
  const edited = diff.getByRole('article').filter({ hasText: 'one was sold' })
  await edited.hover()
  await edited.getByRole('button', { name: 'Delete the comment' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
  // Nothing below an open dialog has a role, so that alone would not tell that it was deleted.
  await page.getByRole('dialog').waitFor({ state: 'detached' })
  await diff.getByRole('article').getByText('one was sold').waitFor({ state: 'detached' })
  const { items } = await api('GET', '/api/v1/repositories/talk/pulls/1/line-comments')
  assert.deepEqual(
    items.map(({ body, resolved_by }) => [body, resolved_by ?? null]),
    [['why **two**?', null]],
  )
  assert.deepEqual(page.complaints, [])
  await page.context().close()
})

// The agent of a task whose base moves on: it writes at first, and merges the base when it is told to.
const MERGES = `
case "$1" in
*"git merge origin/main"*)
  git merge -q origin/main || { printf 'open, and painted\\n' > gate.txt; git add -A
    git -c user.name=a -c user.email=a@localhost commit -qm merge; } ;;
*) printf 'open\\n' > gate.txt ;;
esac`

test('a conflict is told before the click, resolved by the agent, and merged', { timeout: 290_000 }, async () => {
  await makeRepository('gate', { 'gate.txt': 'closed\n' }, { paint: { 'gate.txt': 'painted\n' } })
  const agent = await makeAgent('merges', MERGES)
  const { id } = await api('POST', '/api/v1/tasks', { title: 'Open the gate', repository: 'gate', agent_id: agent })
  await api('POST', `/api/v1/tasks/${id}/start`, {})
  await eventually(async () => (await api('GET', `/api/v1/tasks/${id}`)).state === 'in_review', 'it is in review')
  const page = await openPage()
  await signIn(page, `/ui/tasks/${id}?tab=changes`)
  const told = page.getByRole('status', { name: 'Mergeability' })
  await told.getByText('It can be merged').waitFor()

  // The base moves on while the page is open.
  const { number } = await api('POST', '/api/v1/repositories/gate/pulls', { title: 'Paint', head: 'paint' })
  await api('POST', `/api/v1/repositories/gate/pulls/${number}/merge`, { method: 'squash' })
  await told.getByText('It conflicts with main').waitFor()
  await told.getByRole('list', { name: 'Files in conflict' }).getByText('gate.txt').waitFor()
  const merge = page.getByRole('button', { name: 'Merge', exact: true })
  assert.equal(await merge.getAttribute('aria-disabled'), 'true')
  await told.getByRole('button', { name: 'Let the agent resolve it' }).click()
  await told.getByText('It can be merged').waitFor({ timeout: 200_000 })
  await page.getByText('open, and painted').waitFor()
  await eventually(async () => (await api('GET', `/api/v1/tasks/${id}`)).state === 'in_review', 'it is in review again')

  // Two attempts are compared by what changed between them.
  await page.goto(`${BASE}/ui/tasks/${id}?tab=details`)
  await page.getByRole('region', { name: 'Figures side by side' }).getByText('Attempt 2').waitFor()
  await page.getByRole('region', { name: 'Changes of gate.txt' }).getByText('open, and painted').waitFor()
  await page.goto(`${BASE}/ui/tasks/${id}?tab=changes`)
  await merge.click()
  await page.getByRole('dialog').getByRole('button', { name: 'Merge', exact: true }).click()
  await page.getByText('merged', { exact: true }).waitFor()
  // The pull request leads back to its task.
  const { items } = await api('GET', '/api/v1/repositories/gate/pulls')
  const own = items.find((pull) => pull.title === 'Open the gate')
  await page.goto(`${BASE}/ui/repositories/gate/pulls/${own.number}`)
  await page.getByRole('link', { name: 'Open the gate' }).click()
  await page.waitForURL((url) => url.pathname.endsWith(`/tasks/${id}`))
  assert.deepEqual(page.complaints, [])
  await page.context().close()
})

test('the page of a task reads little of an output of 100,000 lines', { timeout: 290_000 }, async (t) => {
  await makeRepository('long', { 'a.txt': 'a\n' })
  const agent = await makeAgent('counts', 'seq 1 100000; echo b > a.txt')
  const { id } = await api('POST', '/api/v1/tasks', { title: 'Count far', repository: 'long', agent_id: agent })
  await api('POST', `/api/v1/tasks/${id}/start`, {})
  await eventually(async () => (await api('GET', `/api/v1/tasks/${id}`)).state === 'in_review', 'it is in review')
  const page = await openPage()
  await signIn(page, '/ui/audit')
  let read = 0
  page.on('response', (response) => {
    if (!response.url().includes('/api/v1/')) return
    void response.body().then(
      (body) => (read += body.length),
      () => undefined,
    )
  })
  await page.goto(`${BASE}/ui/tasks/${id}`)
  await page.getByRole('log', { name: 'Conversation' }).getByText('100000').waitFor()
  await page.getByRole('switch', { name: 'Raw output' }).click()
  await page.getByRole('log', { name: 'Output of attempt 1' }).getByText('100000').waitFor()
  t.diagnostic(`${read} bytes were read`)
  assert.ok(read > 1000 && read <= 200_000, `${read} bytes were read`)
  assert.deepEqual(page.complaints, [])
  await page.context().close()
})
