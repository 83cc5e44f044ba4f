package docs_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestConsole sends the requests of the console blocks to a stack of tandem up, and compares what the pages say comes back:
// the status line, the headers that are shown, and a body if one is shown. Times differ from run to run; all else must not.
func TestConsole(t *testing.T) {
	shown := 0
	address := startStack(t)
	for _, p := range pages(t) {
		for _, c := range p.codes {
			if c.language != "console" {
				continue
			}
			shown++
			line, answer, _ := strings.Cut(c.text, "\n")
			command, isPrompt := strings.CutPrefix(line, "$ curl -i ")
			if !isPrompt {
				t.Errorf("%s, line %d: want a line that begins with $ curl -i", p.name, c.line)
				continue
			}
			compareAnswer(t, p.name, send(t, address, shellWords(command)), strings.Split(strings.TrimSpace(answer), "\n"))
		}
	}
	if shown == 0 {
		t.Error("no page shows a request")
	}
}

// changing is what differs from run to run in the story of a request.
var changing = regexp.MustCompile(`127\.0\.0\.1:\d+|(decode|prefill)-\d|began .* UTC|\. \d+ % of the time passed in .*|[0-9.]+(ms|µs|s)\b|dur=[0-9.]+| +`)

// TestWhy asks for the story of a request as why.md does, and compares it with what the page shows.
func TestWhy(t *testing.T) {
	address, ready := startStackWithFile(t)
	body := `{"model":"tiny","prompt":"Hello","max_tokens":4}`
	send(t, address, []string{address + "/v1/completions", "-H", "content-type: application/json", "-H", "x-request-id: order-66", "-H", "x-tandem-pd: force", "-d", body})
	got := ""
	for range 100 { // picker and sidecar note a request after its answer
		out, err := exec.CommandContext(t.Context(), program(t, "tandem"), "why", "--up", ready, "order-66").CombinedOutput()
		if got = string(out); err == nil && !strings.Contains(got, " not known: ") {
			break
		}
	}
	for _, c := range pageNamed(t, "docs/why.md").codes {
		if strings.HasPrefix(c.text, "request ") {
			want, is := changing.ReplaceAllString(strings.TrimSpace(c.text), " "), changing.ReplaceAllString(strings.TrimSpace(got), " ")
			if is != want {
				t.Errorf("docs/why.md shows\n%s\nand it is\n%s", c.text, got)
			}
			return
		}
	}
	t.Error("docs/why.md shows no story")
}

// startStack runs tandem up as the README does, on a free port, until the test ends.
func startStack(t *testing.T) (address string) {
	t.Helper()
	address, _ = startStackWithFile(t)
	return address
}

// startStackWithFile also returns the name of a file with the ready line.
func startStackWithFile(t *testing.T) (address, file string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program(t, "tandem"), "up", "--listen", "127.0.0.1:0", "--threshold", "256")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		cmd.Wait() // its exit code is the demo's to test
	})
	var ready struct{ Addresses map[string]string }
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &ready)
	}
	if err != nil || ready.Addresses["http"] == "" {
		t.Fatalf("tandem up printed %q, %v", line, err)
	}
	file = filepath.Join(t.TempDir(), "up.json")
	if err := os.WriteFile(file, line, 0o600); err != nil {
		t.Fatal(err)
	}
	return ready.Addresses["http"], file
}

// send sends what a curl line asks for, but to an address.
func send(t *testing.T, address string, words []string) *http.Response {
	t.Helper()
	var body, path string
	header := http.Header{}
	for i := 0; i < len(words); i++ {
		switch words[i] {
		case "-d":
			i++
			body = words[i]
		case "-H":
			i++
			name, value, _ := strings.Cut(words[i], ": ")
			header.Set(name, value)
		default:
			_, path, _ = strings.Cut(words[i], "/")
		}
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header = header
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	return answer
}

var milliseconds = regexp.MustCompile(`dur=[0-9.]+`)

// compareAnswer compares an answer with the lines that a page shows of it.
func compareAnswer(t *testing.T, page string, answer *http.Response, shown []string) {
	t.Helper()
	if got := "HTTP/1.1 " + answer.Status; got != shown[0] {
		t.Errorf("%s shows %q, and it is %q", page, shown[0], got)
	}
	for _, line := range shown[1:] {
		name, want, isHeader := strings.Cut(line, ": ")
		got := answer.Header.Get(name)
		if !isHeader || strings.HasPrefix(line, "{") {
			body, err := io.ReadAll(answer.Body)
			if err != nil {
				t.Fatal(err)
			}
			want, got = line, string(body)
		}
		if milliseconds.ReplaceAllString(got, "dur") != milliseconds.ReplaceAllString(want, "dur") {
			t.Errorf("%s shows\n%s\nand it is\n%s", page, want, got)
		}
	}
}
