// Pictures for the README, of a real server at work: `make screenshots`. The agents are scripts; nothing else is made up.
import { mkdirSync } from 'node:fs'
import {
  KEY,
  BASE,
  api,
  closeBrowser,
  eventually,
  makeAgent,
  makeRepository,
  makeSandbox,
  openPage,
  operatorKey,
  screen,
  signIn,
} from './browser.mjs'

const INTO = process.env.COFFER_SCREENSHOTS
mkdirSync(INTO, { recursive: true })

const PARSER = `"""Reads amounts of money, such as 12.50 EUR."""


def parse(text):
    number, currency = text.split()
    return float(number), currency
`
const TEST = `import unittest

import money


class Amounts(unittest.TestCase):
    def test_errors_name_the_text(self):
        with self.assertRaisesRegex(ValueError, "12,50 EUR"):
            money.parse("12,50 EUR")
        with self.assertRaisesRegex(ValueError, "much"):
            money.parse("much")
`
const CHECKED = `"""Reads amounts of money, such as 12.50 EUR."""

from decimal import Decimal, InvalidOperation


class BadAmount(ValueError):
    """The text is no amount of money."""


def parse(text):
    try:
        number, currency = text.split()
        return Decimal(number), currency
    except (ValueError, InvalidOperation) as error:
        raise BadAmount(f"not an amount: {text!r}") from error
`
const QUICK = PARSER.replace('    number,', '    if not text.strip():\n        raise ValueError("empty")\n    number,')

const write = (path, text) => `cat > ${path} <<'TEXT'\n${text}TEXT\n`
const say = (...lines) => lines.map((line) => `echo "${line}"; sleep 0.2`).join('\n') + '\n'

const AGENTS = {
  careful:
    say(
      'Reading money.py and its tests.',
      'parse() fails with a bare ValueError, and floats lose cents.',
      'Using Decimal, and an error that names the text.',
    ) +
    write('money.py', CHECKED) +
    say('python3 -m unittest: OK', 'Errors name the text now, and no cent is lost.'),
  quick: say('Looking at money.py.', 'Adding a check for empty text.') + write('money.py', QUICK) + say('Done.'),
  hasty:
    say('Rewriting money.py.') + "echo 'def parse(text): return text.spilt(' > money.py\n" + say('Looks right to me.'),
}
// Works until it is told to stop, so that the board has something in progress.
const WAITING =
  say(
    'Reading the slow tests.',
    'test_import takes 41 s of 63 s: it builds the catalogue each time.',
    'Moving the catalogue into a fixture of the session.',
  ) + 'until [ -e /tmp/go ]; do sleep 0.2; done\n'

async function demo() {
  await makeRepository('shop', {
    'money.py': PARSER,
    'test_money.py': TEST,
    'README.md': '# Shop\n',
    '.gitignore': '__pycache__/\n',
  })
  const ids = {}
  for (const [name, script] of Object.entries({ ...AGENTS, patient: WAITING }))
    ids[name] = await makeAgent(name, script)
  const check = 'python3 -m unittest -q'
  const task = (title, more = {}) =>
    api('POST', '/api/v1/tasks', { title, repository: 'shop', check_command: check, budget: 0.5, ...more })
  await task('Ship the catalogue as one file', { priority: 'low', labels: ['build'] })
  await task('Rounding differs between cart and invoice', {
    priority: 'urgent',
    labels: ['money', 'bug'],
    agent_id: ids.careful,
  })
  await task('Explain the price rules in the README', { labels: ['docs'] })
  await task('Retry the payment gateway with backoff', { priority: 'high', labels: ['payments'] })
  for (const title of ['Close the connection pool on shutdown', 'Type hints for the cart', 'Drop Python 3.9'])
    await task(title, { state: 'done', labels: ['chores'] })
  const slow = await task('The tests take a minute', { priority: 'high', labels: ['tests'], agent_id: ids.patient })
  await api('POST', `/api/v1/tasks/${slow.id}/start`, {})
  const work = await task('Errors of the money parser name what is wrong', {
    labels: ['money'],
    agent_id: ids.careful,
    description:
      'parse("12,50 EUR") fails with "could not convert string to float".\nSay which text it was, and do not lose cents on the way.',
  })
  await api('POST', `/api/v1/tasks/${work.id}/start`, {})
  const entries = Object.keys(AGENTS).map((name) => ({ agent_id: ids[name], label: name }))
  const fork = await api('POST', '/api/v1/sandboxes/fork', {
    title: 'Errors of the money parser',
    prompt: 'Errors must name the text that is no amount. Cents must not get lost.',
    repository: 'shop',
    check_command: check,
    entries,
  })
  const dockerfile =
    'FROM e2bdev/base\nENV PYTHONUNBUFFERED=1\nRUN git --version && python3 --version\nWORKDIR /srv/shop\nRUN python3 -m venv --without-pip /srv/venv\n'
  const template = { name: 'shop', summary: 'Python with the shop installed' }
  const built = async (text) => {
    const { id } = await api('POST', '/api/v1/templates', { ...template, dockerfile: text })
    const state = async () => (await api('GET', `/api/v1/template-builds/${id}`)).state
    await eventually(async () => ['ready', 'error'].includes(await state()), 'the end of a build')
    return id
  }
  await built(dockerfile)
  const build = await built(`${dockerfile}RUN python3 -m unittest discover -s /srv/shop && ls /srv/shop/money.py\n`)
  for (const name of ['nightly import', 'docs preview']) await makeSandbox({ metadata: { name } })
  const box = await makeSandbox({ metadata: { name: 'try the parser' } })
  const files = { 'shop/money.py': PARSER, 'shop/test_money.py': TEST, 'shop/README.md': '# Shop\n' }
  for (const [path, body] of Object.entries(files)) {
    await fetch(`${BASE}/api/v1/sandboxes/${box.id}/files/home/user/${path}`, {
      method: 'PUT',
      headers: { 'x-api-key': KEY },
      body,
    })
  }
  const commit =
    "cd shop && git init -qb main && git add . && git -c user.name=dev -c user.email=dev@localhost commit -qm 'feat: what there is'"
  await api('POST', `/api/v1/sandboxes/${box.id}/exec`, { command: commit })
  await eventually(async () => (await api('GET', `/api/v1/tasks/${work.id}`)).state === 'in_review', 'a pull request')
  await eventually(async () => (await api('GET', `/api/v1/sandboxes/fork/${fork.id}`)).state === 'waiting', 'a ranking')
  return { work: work.id, fork: fork.id, box: box.id, build }
}

async function shoot(page, name, into = INTO) {
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme })
    await page.waitForFunction(
      (dark) => document.documentElement.classList.contains('dark') === dark,
      colorScheme === 'dark',
    )
    await page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))))
    await page.screenshot({ path: `${into}/${name}-${colorScheme}.png` })
  }
}

const made = await demo()
const page = await openPage({ viewport: { width: 1440, height: 900 } })
await signIn(page, '/ui/board')
await page.getByText('Rounding differs').waitFor()
await page.waitForLoadState('networkidle')
await shoot(page, 'board')
await page.goto(`${process.env.COFFER_URL}/ui/board?list=true&all=true`)
await page.getByRole('link', { name: 'Rounding differs' }).waitFor()
await shoot(page, 'list')
await page.goto(`${process.env.COFFER_URL}/ui/tasks/${made.work}?tab=changes`)
await page.getByRole('region', { name: 'Changes of money.py' }).getByText('BadAmount').first().waitFor()
await shoot(page, 'work')
await page.goto(`${process.env.COFFER_URL}/ui/forks/${made.fork}`)
await page.getByRole('log').getByText('Looks right to me.').waitFor()
await shoot(page, 'forks')
await page.goto(`${process.env.COFFER_URL}/ui/templates/shop/builds/${made.build}`)
await page.getByRole('alert').waitFor()
await shoot(page, 'build')
await page.goto(`${process.env.COFFER_URL}/ui/sandboxes/${made.box}/terminal`)
await page.locator('[data-terminal=live]').waitFor()
// An ordinary session: look around, run the tests, see what fails.
await page.keyboard.type(`PS1='\\[\\e[32m\\]shop\\[\\e[0m\\] $ '; cd shop; clear\n`)
for (const [line, shown] of [
  ['git log --oneline', 'what there is'],
  ['ls -l --color', 'test_money.py'],
  ['grep -n --color=always def *.py', 'def parse'],
  ['python3 -m unittest -q', 'FAILED'],
]) {
  await page.keyboard.type(`${line}\n`)
  await eventually(
    async () => (await screen(page)).some((row) => row.includes(shown)),
    () => screen(page),
  )
}
await shoot(page, 'terminal')
await page.goto(`${process.env.COFFER_URL}/ui/sandboxes`)
await page.getByRole('row').filter({ hasText: 'try the parser' }).getByRole('img').first().waitFor()
await shoot(page, 'sandboxes')
const operator = await openPage({ viewport: { width: 1440, height: 1200 } })
await signIn(operator, '/ui/', operatorKey())
await operator.getByRole('button', { name: 'Open', exact: true }).first().click()
await operator.getByRole('link', { name: 'Monitoring' }).click()
await operator.getByRole('heading', { name: 'The whole server' }).waitFor()
await operator.waitForLoadState('networkidle')
await operator.waitForFunction(() => !document.body.innerText.includes('Loading'))
await shoot(operator, 'monitoring')
// A phone: what is in progress, in one hand.
const phone = await openPage({
  viewport: { width: 390, height: 844 },
  deviceScaleFactor: 2,
  isMobile: true,
  hasTouch: true,
})
await signIn(phone, `/ui/tasks/${made.work}?tab=changes`)
await phone.getByRole('heading', { name: 'Errors of the money parser name what is wrong' }).waitFor()
await phone.getByRole('region', { name: 'Changes of money.py' }).waitFor()
await shoot(phone, 'phone')

// Every page, in both themes, wide and on a phone: to look at, not for the README.
const PAGES = {
  board: '/board',
  list: '/board?list=true',
  'new-task': '/board?new=true',
  drawer: `/board?task=%22${made.work}%22`,
  task: `/tasks/${made.work}`,
  changes: `/tasks/${made.work}?tab=changes`,
  checks: `/tasks/${made.work}?tab=checks`,
  details: `/tasks/${made.work}?tab=details`,
  forks: '/forks',
  fork: `/forks/${made.fork}`,
  sandboxes: '/sandboxes',
  sandbox: `/sandboxes/${made.box}`,
  terminal: `/sandboxes/${made.box}/terminal`,
  files: `/sandboxes/${made.box}/files`,
  processes: `/sandboxes/${made.box}/processes`,
  'sandbox-logs': `/sandboxes/${made.box}/logs`,
  network: `/sandboxes/${made.box}/network`,
  snapshots: `/sandboxes/${made.box}/snapshots`,
  templates: '/templates',
  'new-template': '/templates/new',
  build: `/templates/shop/builds/${made.build}`,
  volumes: '/volumes',
  repositories: '/repositories',
  repository: '/repositories/shop',
  pull: '/repositories/shop/pulls/1',
  monitoring: '/monitoring',
  logs: '/logs',
  audit: '/audit',
  settings: '/settings',
  keys: '/settings/keys',
  agents: '/settings/agents',
  secrets: '/settings/secrets',
  budgets: '/settings/budgets',
  forges: '/settings/connections',
  webhooks: '/settings/webhooks',
  policy: '/settings/policy',
}
const ALL = process.env.COFFER_ALL_SCREENSHOTS
mkdirSync(ALL, { recursive: true })
for (const [name, path] of Object.entries(PAGES)) {
  await page.setViewportSize({ width: 1440, height: 900 })
  await page.goto(`${BASE}/ui${path}`)
  await page.locator('#content').waitFor()
  // A page that follows something live never rests.
  await page.waitForLoadState('networkidle', { timeout: 3000 }).catch(() => {})
  for (const [width, height] of [
    [1440, 900],
    [390, 844],
  ]) {
    await page.setViewportSize({ width, height })
    await shoot(page, `${name}-${width}`, ALL)
  }
}
await closeBrowser()
