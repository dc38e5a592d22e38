import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
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
  serverPid,
  signIn,
} from './browser.mjs'

after(closeBrowser)

test('the link that `coffer up` prints signs in, once', async () => {
  const link = readFileSync(`${process.env.COFFER_E2E_DATA_DIR}/sign-in`, 'utf8').trim()
  const token = link.split('=').at(-1)
  const asKey = await fetch(`${BASE}/api/v1/project`, { headers: { 'x-api-key': token } })
  assert.equal(asKey.status, 401, 'a token is no key')

  const page = await openPage()
  await page.goto(link)
  await page.getByRole('heading', { name: 'Board' }).waitFor()
  assert.ok(!page.url().includes(token))
  const kept = await page.evaluate(() => [JSON.stringify(localStorage), document.cookie])
  assert.ok(!kept.join().includes('e2b_') && !kept[1].includes('coffer'), 'no script has the key or the cookie')
  assert.deepEqual(page.complaints, [])

  const second = await openPage()
  await second.goto(link)
  await second.getByRole('alert').getByText('This link was already used').waitFor()
  await second.context().close()
  await page.context().close()
})

test('a wrong key is refused, and a key that is revoked ends the session', async () => {
  const page = await openPage()
  await page.goto(`${BASE}/ui/sandboxes`)
  await page.getByLabel('API key').fill(`e2b_${'0'.repeat(40)}`)
  await page.getByRole('button', { name: 'Sign in' }).click()
  await page.getByRole('alert').getByText('Invalid API key').waitFor()

  const made = await api('POST', '/api/v1/keys', { name: 'to be revoked', role: 'read' })
  await page.getByLabel('API key').fill(made.key)
  await page.getByRole('button', { name: 'Sign in' }).click()
  await page.getByRole('heading', { name: 'Sandboxes' }).waitFor()
  assert.ok(await page.getByRole('button', { name: 'New sandbox' }).first().isDisabled(), 'a read key makes nothing')
  await api('DELETE', `/api/v1/keys/${made.id}`)
  await page.getByText('You were signed out').waitFor()
  await page.context().close()
})

test('a sandbox is made in the form, and two browsers see it', async () => {
  // In the light the terminal darkens such a colour until it can be read.
  const [page, other] = [await openPage({ colorScheme: 'dark' }), await openPage()]
  await signIn(page, '/ui/sandboxes')
  await signIn(other, '/ui/sandboxes')
  await other.getByRole('heading', { name: 'Sandboxes' }).waitFor()
  await page.keyboard.press('Control+k')
  await page.getByPlaceholder('Find a task').fill('create')
  await page.keyboard.press('Enter')
  await page.getByLabel('Name').fill('made by hand')
  await page.getByText('Environment and metadata').click()
  await page.getByLabel('Environment', { exact: true }).fill('GREETING=hello there')
  await page.getByRole('button', { name: 'Create', exact: true }).click()

  await other.getByRole('row').filter({ hasText: 'made by hand' }).getByText('running').waitFor()
  await page.locator('[data-terminal=live]').waitFor()
  await page.keyboard.type('echo "$GREETING" from $((40 + 2)); printf "\\033[38;5;208mcolour\\033[0m\\n"\n')
  await eventually(
    async () => (await screen(page)).includes('hello there from 42'),
    () => screen(page),
  )
  // The typed line has the word too, and is there before what it prints.
  const colour = () =>
    page
      .locator('.xterm-rows span', { hasText: 'colour' })
      .last()
      .evaluate((span) => getComputedStyle(span).color)
  await eventually(async () => (await colour()) === 'rgb(255, 135, 0)', colour)

  const id = page.url().match(/sandboxes\/([a-z0-9]+)/)[1]
  await page.getByRole('button', { name: 'Destroy' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Destroy' }).click()
  await page.getByText('This sandbox has ended').waitFor()
  await other.getByRole('row').filter({ hasText: 'made by hand' }).waitFor({ state: 'detached' })
  assert.equal((await api('GET', `/api/v1/sandboxes/${id}`)).state, 'terminated')
  assert.deepEqual([page.complaints, other.complaints], [[], []])
  await page.context().close()
  await other.context().close()
})

test('a terminal loses no byte when the server is killed, nor when the page is reloaded', async () => {
  const { id } = await makeSandbox({ metadata: { name: 'survivor' } })
  const page = await openPage({ viewport: { width: 1400, height: 3200 } })
  await signIn(page, `/ui/sandboxes/${id}/terminal`)
  await page.locator('[data-terminal=live]').waitFor()
  // The shell waits for us, not for a clock: half of the lines come before the kill, half while the server is away.
  await page.keyboard.type(
    'PS1=; clear; for n in $(seq 1 120); do echo "line $n."; [ $n != 60 ] || until [ -e /tmp/go ]; do sleep 0.05; done; sleep 0.02; done; echo all of them\n',
  )
  const numbered = async () => (await screen(page)).filter((row) => /^line \d+\.$/.test(row))
  await eventually(
    async () => (await numbered()).length === 60,
    () => screen(page),
  )
  await api('PUT', `/api/v1/sandboxes/${id}/files/tmp/soon`, undefined)
  await api('POST', `/api/v1/sandboxes/${id}/exec`, { command: '(sleep 1; touch /tmp/go) >/dev/null 2>&1 &' })
  const pid = serverPid()
  process.kill(pid, 'SIGKILL')
  await page.locator('[data-terminal=reconnecting]').waitFor()
  await eventually(
    async () => (await screen(page)).includes('all of them'),
    () => screen(page),
  )
  const expected = Array.from({ length: 120 }, (_, at) => `line ${at + 1}.`)
  assert.deepEqual(await numbered(), expected)
  assert.notEqual(serverPid(), pid)

  await page.keyboard.type('echo still $((20 + 3))\n')
  await eventually(
    async () => (await screen(page)).includes('still 23'),
    () => screen(page),
  )
  await page.reload()
  await page.locator('[data-terminal=live]').waitFor()
  await eventually(
    async () => (await screen(page)).includes('still 23'),
    () => screen(page),
  )
  assert.deepEqual(await numbered(), expected, 'the same shell, from what is kept')
  assert.deepEqual(page.complaints, [])
  await page.context().close()
  await api('DELETE', `/api/v1/sandboxes/${id}`)
})

test('nothing wakes a paused sandbox but a click', async () => {
  const { id } = await makeSandbox({ auto_resume: true, metadata: { name: 'sleeper' } })
  const page = await openPage()
  await signIn(page, `/ui/sandboxes/${id}/terminal`)
  await page.locator('[data-terminal=live]').waitFor()
  await page.keyboard.type('MARK=$((50 + 5)); echo marked $MARK\n')
  await eventually(
    async () => (await screen(page)).includes('marked 55'),
    () => screen(page),
  )
  await page.getByRole('button', { name: 'Pause', exact: true }).click()
  await page.getByText('This sandbox is paused').waitFor()
  const tabs = page.getByRole('navigation', { name: 'Sandbox', exact: true })
  for (const tab of ['Overview', 'Files', 'Processes', 'Logs', 'Network', 'Snapshots', 'Events', 'Terminal']) {
    await tabs.getByRole('link', { name: tab }).click()
    await page.waitForLoadState('networkidle')
    assert.equal((await api('GET', `/api/v1/sandboxes/${id}`)).state, 'paused', `${tab} must not wake it`)
  }
  await page.getByText('Nothing here wakes it').waitFor()
  await page.locator('main').getByRole('button', { name: 'Resume' }).last().click()
  await page.locator('[data-terminal=live]').waitFor()
  await page.keyboard.type('echo again $MARK\n')
  await eventually(
    async () => (await screen(page)).includes('again 55'),
    () => screen(page),
  )
  assert.deepEqual(page.complaints, [])
  await page.context().close()
  await api('DELETE', `/api/v1/sandboxes/${id}`)
})

test('over quota, people are told what and why', async () => {
  const { id: project } = await api('GET', '/api/v1/project')
  const { used } = await api('GET', '/api/v1/quotas')
  await api('PUT', `/api/v1/projects/${project}/quotas`, { sandboxes: used.sandboxes }, operatorKey())
  try {
    const page = await openPage()
    await signIn(page, '/ui/sandboxes?create=true')
    await page.getByRole('button', { name: 'Create', exact: true }).click()
    const alert = page.getByRole('dialog').getByRole('alert')
    await alert.getByText(`quota \`sandboxes\` is ${used.sandboxes}`).waitFor()
    assert.match(await alert.innerText(), /Request [a-z0-9]+/)
    assert.ok(
      await page.getByRole('dialog').getByRole('button', { name: 'Create' }).isEnabled(),
      'it can be tried again',
    )
    await page.context().close()
  } finally {
    await api('PUT', `/api/v1/projects/${project}/quotas`, {}, operatorKey())
  }
})

test('files: names and contents are text, whatever they say', async () => {
  const attack = '<img src=x onerror="window.pwned=1">'
  const { id } = await makeSandbox({ metadata: { name: attack, note: attack } })
  const put = (path, body) =>
    fetch(`${BASE}/api/v1/sandboxes/${id}/files/${path}`, { method: 'PUT', headers: { 'x-api-key': KEY }, body })
  await put(`home/user/${encodeURIComponent(attack)}`, attack)
  await put(`home/user/${encodeURIComponent('photo\u202egpj.exe')}`, 'x')
  await put('home/user/page.html', '<script>window.pwned=1</script>')
  await api('POST', `/api/v1/sandboxes/${id}/exec`, { command: `echo '${attack}'; printf '\\033]0;${attack}\\007'` })
  const page = await openPage()
  await signIn(page, `/ui/sandboxes/${id}/files`)
  await page.getByText(attack).first().waitFor()
  await page.getByText('photo\ufffdgpj.exe').waitFor()
  await page.getByRole('button', { name: 'page.html', exact: true }).click()
  await page.locator('.cm-content', { hasText: 'window.pwned' }).click()
  await page.keyboard.press('Control+End')
  await page.keyboard.type('edited')
  await page.keyboard.press('Control+s')
  await page.getByText('Saved', { exact: true }).waitFor()
  const saved = await fetch(`${BASE}/api/v1/sandboxes/${id}/files/home/user/page.html`, {
    headers: { 'x-api-key': KEY },
  })
  assert.equal(await saved.text(), '<script>window.pwned=1</script>edited')
  await page.getByRole('button', { name: 'Back to the directory' }).click()
  await page
    .locator('input[type=file]')
    .setInputFiles({ name: 'upload.bin', mimeType: 'x/y', buffer: Buffer.alloc(300_000, 7) })
  await page.getByRole('button', { name: 'upload.bin', exact: true }).waitFor()
  const download = page.waitForEvent('download')
  await page.getByRole('button', { name: 'Download upload.bin' }).click()
  assert.deepEqual(readFileSync(await (await download).path()), Buffer.alloc(300_000, 7))
  for (const tab of ['logs', 'events', 'processes', '']) {
    await page.goto(`${BASE}/ui/sandboxes/${id}/${tab}`)
    await page.getByRole('heading', { name: attack }).waitFor()
    await page.waitForLoadState('networkidle')
  }
  assert.equal(await page.evaluate(() => window.pwned), undefined)
  assert.deepEqual(page.complaints, [])
  await page.context().close()
  await api('DELETE', `/api/v1/sandboxes/${id}`)
})

test('it is served strictly, and is in nobody else’s way', async () => {
  const page = await fetch(`${BASE}/ui/sandboxes/abc`)
  assert.equal(page.headers.get('content-type'), 'text/html; charset=utf-8')
  assert.match(
    page.headers.get('content-security-policy'),
    /default-src 'none'; script-src [^ ;']+\/ui\/ 'sha256-[^']+';/,
  )
  assert.equal(page.headers.get('cache-control'), 'no-cache')
  const script = /src="(\/ui\/assets\/[^"]+\.js)"/.exec(await page.text())[1]
  const served = await fetch(`${BASE}${script}`, { headers: { 'accept-encoding': 'br' } })
  assert.deepEqual(
    [served.headers.get('content-encoding'), served.headers.get('cache-control')],
    ['br', 'public, max-age=31536000, immutable'],
  )
  assert.equal((await fetch(`${BASE}/ui/assets/gone.js`)).status, 404)
  const { id } = await makeSandbox()
  const { envdAccessToken: token } = await api('GET', `/sandboxes/${id}`)
  const digest = createHash('sha256').update(`/etc/hostname:read::${token}`).digest('base64').replace(/=+$/, '')
  const signed = await fetch(`${BASE}/files?path=/etc/hostname&signature=${encodeURIComponent(`v1_${digest}`)}`)
  assert.equal((await signed.text()).trim(), id)
  assert.match(signed.headers.get('content-security-policy'), /^sandbox;/, 'what sandboxes hold is not of our origin')
  await api('DELETE', `/api/v1/sandboxes/${id}`)
  const root = await fetch(`${BASE}/`, { redirect: 'manual' })
  assert.deepEqual([root.status, root.headers.get('location')], [307, '/ui/'])
  for (const path of ['/api/v1/nothing', '/nothing', '/sandboxes/nothing']) {
    const missing = await fetch(`${BASE}${path}`, { headers: { 'x-api-key': KEY, accept: 'text/html' } })
    assert.deepEqual([missing.status, missing.headers.get('content-type')], [404, 'application/json'], path)
  }
})

test('the board: moved by mouse and by keys, and another browser sees it', async (t) => {
  for (const title of ['first thing', 'second thing']) await api('POST', '/api/v1/tasks', { title, state: 'todo' })
  const [page, other] = [await openPage(), await openPage()]
  await signIn(page, '/ui/board')
  await signIn(other, '/ui/board')
  for (const one of [page, other]) await one.getByLabel('Filter').fill('thing')
  const column = (where, name) => where.getByRole('region', { name, exact: true }).getByRole('listitem')
  await column(other, 'To do').filter({ hasText: 'second thing' }).waitFor()

  await page.getByLabel('New task to do').fill('third thing')
  await page.getByLabel('New task to do').press('Enter')
  const added = performance.now()
  await column(other, 'To do').filter({ hasText: 'third thing' }).waitFor()
  t.diagnostic(`another browser shows a new task after ${Math.round(performance.now() - added)} ms`)

  const order = async () =>
    (await column(other, 'To do').getByRole('link').allInnerTexts()).map((title) => title.trim().split(/\s/)[0])
  const before = await order()
  await page.getByRole('link', { name: `${before[0]} thing` }).focus()
  await page.keyboard.press('Space')
  // What is told to screen readers tells the test, too.
  const told = page.locator('[id^="DndLiveRegion"]')
  await told.filter({ hasText: `${before[0]} thing` }).waitFor({ state: 'attached' })
  await page.keyboard.press('ArrowDown')
  await told.filter({ hasText: `${before[0]} thing is over ${before[1]} thing, number` }).waitFor({ state: 'attached' })
  await page.keyboard.press('Space')
  await eventually(async () => (await order()).join() === [before[1], before[0], before[2]].join(), order)

  // A card may still be on its way to its new place, and the grip with it: take hold again until the page says so.
  await eventually(async () => {
    const grip = await page.getByRole('link', { name: 'second thing' }).boundingBox()
    await page.mouse.move(grip.x + 5, grip.y + 5)
    await page.mouse.down()
    await page.mouse.move(grip.x + 40, grip.y + 20, { steps: 4 })
    const taken = await told
      .filter({ hasText: /^(Picked up second thing|second thing is over)/ })
      .waitFor({ state: 'attached', timeout: 1000 })
      .then(
        () => true,
        () => false,
      )
    if (!taken) await page.mouse.up()
    return taken
  }, 'the mouse takes the card')
  const target = await page.getByRole('region', { name: 'Done', exact: true }).boundingBox()
  await page.mouse.move(target.x + target.width / 2, target.y + 70, { steps: 8 })
  await told.filter({ hasText: /second thing is over .*Done\./ }).waitFor({ state: 'attached' })
  await page.mouse.up()
  await column(page, 'Done').filter({ hasText: 'second thing' }).waitFor()
  const dropped = performance.now()
  await column(other, 'Done').filter({ hasText: 'second thing' }).waitFor()
  t.diagnostic(`another browser shows a move after ${Math.round(performance.now() - dropped)} ms`)
  const { items } = await api('GET', '/api/v1/tasks?state=done')
  assert.ok(items.some((task) => task.title === 'second thing'))
  assert.deepEqual([page.complaints, other.complaints], [[], []])
  await page.context().close()
  await other.context().close()
})

test('a task is changed in the drawer beside the board, and what it is not is said', async () => {
  const { id } = await api('POST', '/api/v1/tasks', { title: 'paint the door', state: 'todo', labels: ['colour'] })
  const page = await openPage()
  await signIn(page, '/ui/board')
  await page.getByRole('link', { name: 'paint the door' }).click()
  const drawer = page.getByRole('dialog', { name: 'paint the door' })
  await drawer.getByRole('button', { name: 'Edit' }).click()
  const form = page.getByRole('dialog', { name: 'Edit the task' })
  await form.getByLabel('Title').fill('paint the door green')
  await form.getByLabel('Description').fill('Both sides.')
  await form.getByLabel('Priority').selectOption('high')
  // Somebody else is faster; their change is not lost.
  await api('PATCH', `/api/v1/tasks/${id}`, { labels: ['colour', 'outside'] })
  await form.getByRole('button', { name: 'Save' }).click()
  await form.getByRole('alert').waitFor()
  await form.getByRole('button', { name: 'Cancel' }).click()
  await drawer.getByText('colour, outside').waitFor()
  await drawer.getByRole('button', { name: 'Edit' }).click()
  await form.getByLabel('Title').fill('paint the door green')
  await form.getByLabel('Priority').selectOption('high')
  await form.getByRole('button', { name: 'Save' }).click()
  await form.waitFor({ state: 'detached' })
  const { title, priority, labels } = await api('GET', `/api/v1/tasks/${id}`)
  assert.deepEqual(
    { title, priority, labels },
    { title: 'paint the door green', priority: 'high', labels: ['colour', 'outside'] },
  )
  await page.keyboard.press('Escape')
  await page.getByRole('region', { name: 'To do', exact: true }).getByText('paint the door green').waitFor()
  assert.deepEqual(page.complaints, [])
  await page.context().close()
})

test('a pull request is looked at, commented on and merged', async () => {
  await api('POST', '/api/v1/repositories', { name: 'house' })
  const { clone_url: remote } = await api('GET', '/api/v1/repositories/house')
  const work = mkdtempSync(`${tmpdir()}/coffer-ui-git-`)
  try {
    const git = (...words) => {
      const identity = ['-c', 'user.name=e2e', '-c', 'user.email=e2e@localhost', '-c', 'init.defaultBranch=main']
      const done = spawnSync('git', [...identity, ...words], { cwd: work, encoding: 'utf8' })
      assert.equal(done.status, 0, `git ${words.join(' ')}: ${done.stderr}`)
    }
    git('init', '-q')
    writeFileSync(`${work}/door.txt`, 'closed\n')
    git('add', '.')
    git('commit', '-qm', 'feat: a door')
    const at = new URL(remote, BASE)
    git('remote', 'add', 'origin', `${BASE.replace('://', `://x:${KEY}@`)}${at.pathname}`)
    git('push', '-q', 'origin', 'main')
    git('checkout', '-qb', 'task-1')
    writeFileSync(`${work}/door.txt`, 'open <b>wide</b>\n')
    git('commit', '-qam', 'fix: open it')
    git('push', '-q', 'origin', 'task-1')
  } finally {
    rmSync(work, { recursive: true, force: true })
  }
  const page = await openPage()
  await signIn(page, '/ui/repositories')
  await page.getByRole('link', { name: 'house' }).click()
  await page.getByRole('button', { name: 'Open a pull request' }).click()
  await page.getByLabel('Title').fill('Open the door')
  await page.getByRole('button', { name: 'Open pull request' }).click()
  await page.getByText('open <b>wide</b>').waitFor()
  await page.getByRole('button', { name: 'Comment on line 1' }).last().focus()
  await page.keyboard.press('Enter')
  await page.getByLabel('Comment on this line').fill('not too wide?')
  await page.getByRole('button', { name: 'Comment', exact: true }).first().click()
  await page.getByText('not too wide?').waitFor()
  await page.getByRole('button', { name: 'Merge', exact: true }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Merge', exact: true }).click()
  await page.getByText('merged', { exact: true }).waitFor()
  assert.equal((await api('GET', '/api/v1/repositories/house/pulls/1')).state, 'merged')
  assert.deepEqual(page.complaints, [])
  await page.context().close()
})
