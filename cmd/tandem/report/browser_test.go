package report

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// browser is headless Chromium, controlled by its DevTools protocol over a pair of pipes: JSON messages that end with NUL.
type browser struct {
	t       *testing.T
	to      io.Writer
	from    *bufio.Reader
	session string
	last    int
	// URLs that the page loaded, and its console messages.
	loaded, complaints []string
}

// message is a response or an event of the protocol.
type message struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// startBrowser opens one empty page; the browser ends with the test.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("chromium is needed to open the report (Debian: apt-get install chromium)")
		}
		t.Skip("no chromium on PATH")
	}
	commandsOut, commands, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	answers, answersIn, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	c := exec.Command(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run", "--disable-extensions", "--disable-background-networking", "--hide-scrollbars",
		"--remote-debugging-pipe",
		"--user-data-dir="+t.TempDir(), "about:blank")
	c.ExtraFiles = []*os.File{commandsOut, answersIn} // it reads commands from descriptor 3 and writes answers to 4
	c.Stderr = &said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = commandsOut.Close(), answersIn.Close()
	b := &browser{t: t, to: commands, from: bufio.NewReaderSize(answers, 1<<20)}
	t.Cleanup(func() {
		_ = b.send("Browser.close", nil) // it may have ended already
		_ = commands.Close()             // which ends it too
		_, _ = io.Copy(io.Discard, b.from)
		_, _ = answers.Close(), c.Wait()
		if t.Failed() {
			t.Logf("chromium said: %s", said.Bytes())
		}
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", object{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", object{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

type object map[string]any

func (b *browser) send(method string, params object) error {
	b.last++
	m := object{"id": b.last, "method": method}
	if params != nil {
		m["params"] = params
	}
	if b.session != "" {
		m["sessionId"] = b.session
	}
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = b.to.Write(append(data, 0))
	return err
}

// call waits for the response, and records the events that come before it.
func (b *browser) call(method string, params object, result any) {
	b.t.Helper()
	if err := b.send(method, params); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	for {
		m := b.read()
		if m.ID != b.last {
			continue
		}
		if m.Error != nil {
			b.t.Fatalf("%s: %s", method, m.Error)
		}
		if result != nil {
			if err := json.Unmarshal(m.Result, result); err != nil {
				b.t.Fatalf("%s: %v", method, err)
			}
		}
		return
	}
}

func (b *browser) read() message {
	b.t.Helper()
	data, err := b.from.ReadBytes(0)
	if err != nil {
		b.t.Fatalf("reading from chromium: %v", err)
	}
	var m message
	if err := json.Unmarshal(data[:len(data)-1], &m); err != nil {
		b.t.Fatal(err)
	}
	switch m.Method {
	case "Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled":
		b.complaints = append(b.complaints, string(m.Params))
	case "Network.requestWillBeSent":
		var p struct{ Request struct{ URL string } }
		if err := json.Unmarshal(m.Params, &p); err != nil {
			b.t.Fatal(err)
		}
		b.loaded = append(b.loaded, p.Request.URL)
	}
	return m
}

// open shows a file on a screen that is so many pixels wide, and waits until it is loaded.
func (b *browser) open(url, scheme string, width int) {
	b.t.Helper()
	b.call("Emulation.setEmulatedMedia", object{"features": []object{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
	b.call("Emulation.setDeviceMetricsOverride", object{"width": width, "height": 800, "deviceScaleFactor": 1,
		"mobile": false}, nil)
	b.loaded, b.complaints = nil, nil
	if err := b.send("Page.navigate", object{"url": url}); err != nil {
		b.t.Fatal(err)
	}
	for b.read().Method != "Page.loadEventFired" {
		continue
	}
}

// eval returns the value of an expression in the page.
func (b *browser) eval(expression string, value any) {
	b.t.Helper()
	var answer struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	b.call("Runtime.evaluate", object{"expression": expression, "returnByValue": true}, &answer)
	if answer.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, answer.ExceptionDetails)
	}
	if err := json.Unmarshal(answer.Result.Value, value); err != nil {
		b.t.Fatalf("%s: %v in %s", expression, err, answer.Result.Value)
	}
}

// screenshot saves a picture of the whole page, which go test -artifacts keeps.
func (b *browser) screenshot(name string) {
	b.t.Helper()
	var shot struct{ Data string }
	b.call("Page.captureScreenshot", object{"captureBeyondViewport": true}, &shot)
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.t.ArtifactDir(), name), png, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// tooWide lists the elements that overflow the page to the right, without those that scroll by themselves.
const tooWide = `[...document.body.querySelectorAll("*")]
	.filter(e => !e.closest(".scroll, .skip") && e.getBoundingClientRect().right > innerWidth + 0.5)
	.map(e => e.tagName + " " + e.textContent.slice(0, 40))`

// clipped lists the tables that are wider than the region in which they scroll. The table of all requests always is; on a
// phone all tables of figures are.
const clipped = `[...document.querySelectorAll(".scroll")]
	.filter(e => e.querySelector(innerWidth < 768 ? ".candidates" : "table:not(.requests)") && e.scrollWidth > e.clientWidth)
	.map(e => e.getAttribute("aria-label") + ": " + e.scrollWidth + " of " + e.clientWidth + " px")`

// cutOff lists the captions that go beyond the screen.
const cutOff = `[...document.querySelectorAll("caption span")].filter(e => e.getBoundingClientRect().right > innerWidth).map(e => e.textContent)`

// torn lists the headings of one word that take more than one line.
const torn = `[...document.querySelectorAll(".candidates thead th")].filter(e => {
	const text = document.createRange();
	text.selectNodeContents(e);
	return /^\w+$/.test(e.textContent) && text.getClientRects().length > 1;
}).map(e => e.textContent)`

// colliding lists texts in drawings that overlap.
const colliding = `[...document.querySelectorAll("svg")].flatMap(svg => {
	const texts = [...svg.querySelectorAll("text")].map(t => [t.textContent, t.getBoundingClientRect()]);
	return texts.slice(1).filter(([, r], i) => r.left < texts[i][1].right + 2 && r.top < texts[i][1].bottom).map(([s]) => s);
})`

func TestPageInBrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it")
	}
	b := startBrowser(t)
	for name, page := range rendered(t) {
		file := filepath.Join(t.TempDir(), strings.ReplaceAll(name, " ", "-")+".html")
		if err := os.WriteFile(file, page, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, scheme := range []string{"light", "dark"} {
			for _, width := range []int{360, 400, 1280} {
				t.Run(fmt.Sprintf("%s %s %d", name, scheme, width), func(t *testing.T) {
					b.t = t
					b.open("file://"+file, scheme, width)
					checkPage(b, width)
					if !strings.HasSuffix(name, "hostile") { // whose words are longer than any screen is wide
						b.mustHaveNone("is clipped", clipped)
						b.mustHaveNone("is torn", torn)
					}
					if !strings.HasSuffix(name, "hostile") { // that page is too long for a picture
						b.screenshot(fmt.Sprintf("%s-%s-%d.png", name, scheme, width))
					}
				})
			}
		}
		b.t = t
	}
}

func checkPage(b *browser, width int) {
	b.t.Helper()
	var overall int
	b.eval("document.documentElement.scrollWidth", &overall)
	if overall > width {
		b.t.Errorf("the page is %d px wide", overall)
	}
	b.mustHaveNone("sticks out", tooWide)
	b.mustHaveNone("letters collide", colliding)
	b.mustHaveNone("caption is cut off", cutOff)
	var styled bool
	b.eval(`getComputedStyle(document.querySelector("main")).maxWidth != "none"`, &styled)
	if !styled {
		b.t.Error("the style sheet is not applied")
	}
	if len(b.complaints) > 0 {
		b.t.Errorf("the console has %s", b.complaints)
	}
	if len(b.loaded) != 1 || !strings.HasPrefix(b.loaded[0], "file://") {
		b.t.Errorf("loaded %q, want the page alone", b.loaded)
	}
}

// mustHaveNone reports the elements that an expression finds.
func (b *browser) mustHaveNone(what, expression string) {
	b.t.Helper()
	var found []string
	b.eval(expression, &found)
	if len(found) > 0 {
		b.t.Errorf("%s: %q", what, found)
	}
}

// TestPageByKeyboard moves through the page with the tab key: everything that scrolls or opens can be reached, and shows the
// focus.
func TestPageByKeyboard(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it")
	}
	b := startBrowser(t)
	file := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(file, render(t, sample(1, 40)), 0o600); err != nil {
		t.Fatal(err)
	}
	b.open("file://"+file, "light", 1280)
	var wanted int
	b.eval(`document.querySelectorAll("a, summary, [tabindex]").length - document.querySelectorAll("details [tabindex]").length`, &wanted)
	reached := map[string]bool{}
	for range wanted {
		b.call("Input.dispatchKeyEvent", object{"type": "keyDown", "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}, nil)
		var focus struct {
			What, Outline string
			Inside        bool
		}
		b.eval(`(e => ({what: e.tagName + (e.getAttribute("aria-label") || e.textContent), outline: getComputedStyle(e).outlineStyle,
			inside: e.getBoundingClientRect().left >= 0}))(document.activeElement)`, &focus)
		if focus.Outline != "solid" || !focus.Inside {
			t.Errorf("the focus on %q does not show", focus.What)
		}
		reached[focus.What] = true
	}
	if len(reached) < wanted-2 { // two stages of different questions may have the same name
		t.Errorf("reached %d of %d: %v", len(reached), wanted, reached)
	}
	b.call("Input.dispatchKeyEvent", object{"type": "keyDown", "key": "Enter", "code": "Enter", "text": "\r",
		"windowsVirtualKeyCode": 13}, nil)
	var open bool
	b.eval(`document.querySelector("details").open`, &open)
	if !open {
		t.Error("enter does not open the table of all requests")
	}
}
