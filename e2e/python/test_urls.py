import httpx
import pytest


@pytest.fixture(scope="module", autouse=True)
def hello(box):
    box.files.write("hello.txt", "hello")
    box.files.write("hello.txt", "hello root", user="root")


@pytest.mark.parametrize("user, content", [(None, "hello"), ("user", "hello"), ("root", "hello root")])
@pytest.mark.parametrize("expiration", [None, 600])
def test_download(box, user, content, expiration):
    answer = httpx.get(box.download_url("hello.txt", user, use_signature_expiration=expiration))
    assert (answer.status_code, answer.text) == (200, content)


@pytest.mark.parametrize("expiration", [None, 600])
def test_upload(box, expiration):
    url = box.upload_url("uploaded.txt", use_signature_expiration=expiration)
    answer = httpx.post(url, files={"file": ("ignored", b"by url")})
    assert answer.status_code == 200
    assert answer.json() == [{"path": "/home/user/uploaded.txt", "name": "uploaded.txt", "type": "file"}]
    assert box.files.read("uploaded.txt") == "by url"


def test_range_and_head_of_a_download(box):
    url = box.download_url("hello.txt")
    part = httpx.get(url, headers={"Range": "bytes=1-3"})
    assert (part.status_code, part.text) == (206, "ell")


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda box: box.download_url("hello.txt", use_signature_expiration=-60), "signature is already expired"),
        (lambda box: box.download_url("hello.txt").replace("hello.txt", "other.txt"), "invalid signature"),
        (lambda box: box.upload_url("hello.txt"), "invalid signature"),
        (lambda box: box.download_url("hello.txt") + "0", "invalid signature"),
    ],
    ids=["expired", "other path", "made for writing", "spoilt"],
)
def test_wrong_signature(box, spoil, message):
    headers = {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": "49983"}
    answer = httpx.get(spoil(box), headers=headers)
    assert (answer.status_code, answer.json()) == (401, {"code": 401, "message": message})


def test_no_signature(box, visit):
    answer = visit(box, 49983, "/files?path=hello.txt")
    assert answer.status_code == 401 and answer.json()["message"] == "missing signature query parameter"


def test_a_signature_that_no_sandbox_made_is_refused(box):
    url = box.download_url("hello.txt").replace("v1_", "v1_AAAA")
    assert httpx.get(url).status_code in (400, 401, 404, 502)
