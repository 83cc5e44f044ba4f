package serving

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// The files in testdata/transcript are what went over the wire between the sidecar and a real vLLM 0.32.0 pair: for each
// call the bytes of the prefill leg, of its answer, of the decode leg, and of its answer. They were written by
//
//	go test -run TestRealEngines/pair/transcript ./e2e/serving -vllm -record
//
// Every other run, on real and on simulated engines, must exchange the same: headers by name, bodies by the order, names
// and types of their members.
var record = flag.Bool("record", false, "write what the engines say to testdata/transcript")

const separator = "\n=====8<=====\n"

func testTranscript(t *testing.T, p *harness.Pair) {
	calls := map[string]harness.Call{
		"completions-whole":  {API: pd.APICompletions, Text: transcriptText, Tokens: 4, Members: map[string]any{"seed": json.Number("12345678901234567")}},
		"completions-stream": {API: pd.APICompletions, Text: transcriptText, Tokens: 4, Stream: true},
		"chat-whole":         {API: pd.APIChat, Text: transcriptText, Tokens: 4, Members: map[string]any{"max_completion_tokens": 4, "min_tokens": 2}},
		"chat-stream":        {API: pd.APIChat, Text: transcriptText, Tokens: 4, Stream: true},
	}
	for _, api := range []pd.API{pd.APIResponses, pd.APIMessages, pd.APIGenerate} {
		for form, stream := range map[string]bool{"whole": false, "stream": true} {
			calls[api.String()+"-"+form] = harness.Call{API: api, Text: transcriptText, Prompt: transcriptTokens(), Tokens: 4, Stream: stream}
		}
	}
	for name, c := range calls {
		t.Run(name, func(t *testing.T) {
			prefill, decode := harness.NewGate(t, p.Prefill.Addr, harness.Answers), harness.NewGate(t, p.Decode.Addr, harness.Answers)
			s := harness.StartSidecar(t, decode.Addr)
			c.Header = map[string]string{pd.HeaderRequestID: "transcript-" + name}
			harness.MustMatch(t, harness.MustSend(t, c.Remote(prefill.Addr), s.Addr("http"), p.Model), c.Stream, p.Want(t, c))
			var got []string
			for _, g := range []*harness.Gate{prefill, decode} {
				request, answer := g.Exchanged()
				got = append(got, request, answer)
			}
			file := filepath.Join("testdata", "transcript", name+".txt")
			if *record {
				if err := os.WriteFile(file, []byte(strings.Join(got, separator)), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range strings.Split(string(b), separator) {
				what := []string{"prefill leg", "prefill answer", "decode leg", "decode answer"}[i]
				if got, want := shape(t, got[i]), shape(t, want); got != want {
					t.Errorf("%s differs from the real engine's.\ngot:\n%s\nwant:\n%s", what, got, want)
				}
			}
		})
	}
}

const transcriptText = "the cache of a block is token and prefill to decode, the cache of a block is token and prefill to decode, " +
	"the cache of a block is token and prefill to decode, the cache of a block is token and prefill to decode"

// transcriptTokens returns ids of ordinary tokens.
func transcriptTokens() (ids []int) {
	for id := range 100 {
		ids = append(ids, 300+id)
	}
	return ids
}

// shape says what of an HTTP message must be the same on every run: the first line, the names of the headers, and of the
// body (of each event of a stream) the members in order with the types of their values. How many tokens or characters
// there are depends on the engine's tokenizer, so a list counts as its first element, and equal events in a row as one.
func shape(t *testing.T, message string) string {
	t.Helper()
	head, rest, ok := strings.Cut(message, "\r\n\r\n")
	if !ok {
		t.Fatalf("no HTTP message: %q", message)
	}
	lines := strings.Split(head, "\r\n")
	var out []string
	chunked := false
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ":")
		chunked = chunked || strings.EqualFold(name, "transfer-encoding") && strings.Contains(value, "chunked")
		out = append(out, strings.ToLower(name))
	}
	slices.Sort(out)
	out = append([]string{lines[0]}, out...)
	if chunked {
		rest = unchunk(t, rest)
	}
	for event := range strings.SplitSeq(rest, "\n\n") {
		if s := eventShape(t, event); s != out[len(out)-1] {
			out = append(out, s)
		}
	}
	return strings.Join(out, "\n")
}

// eventShape is of one event of a stream, or of a whole body.
func eventShape(t *testing.T, event string) string {
	t.Helper()
	lines := strings.Split(event, "\n")
	for i, line := range lines {
		if line = strings.TrimPrefix(line, "data: "); strings.HasPrefix(line, "{") {
			line = jsonShape(t, line)
		}
		lines[i] = line
	}
	return strings.Join(lines, "\n")
}

func unchunk(t *testing.T, body string) string {
	t.Helper()
	var out strings.Builder
	for {
		size, rest, _ := strings.Cut(body, "\r\n")
		var n int
		if _, err := fmt.Sscanf(size, "%x", &n); err != nil {
			t.Fatalf("chunk size %q: %v", size, err)
		}
		if n == 0 {
			return out.String()
		}
		out.WriteString(rest[:n])
		body = strings.TrimPrefix(rest[n:], "\r\n")
	}
}

// jsonShape prints members in order with the kinds of their values.
func jsonShape(t *testing.T, text string) string {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var out bytes.Buffer
	if err := writeShape(d, &out); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return out.String()
}

func writeShape(d *json.Decoder, out *bytes.Buffer) error {
	tok, err := d.Token()
	if err != nil {
		return err
	}
	switch v := tok.(type) {
	case json.Delim:
		if v == '[' {
			return writeListShape(d, out)
		}
		return writeObjectShape(d, out)
	case string:
		out.WriteString("string")
	case json.Number:
		out.WriteString("number")
	default:
		fmt.Fprint(out, v)
	}
	return nil
}

func writeListShape(d *json.Decoder, out *bytes.Buffer) error {
	out.WriteByte('[')
	for n := 0; d.More(); n++ {
		into := out
		if n > 0 {
			into = &bytes.Buffer{}
		}
		if err := writeShape(d, into); err != nil {
			return err
		}
	}
	out.WriteByte(']')
	_, err := d.Token()
	return err
}

func writeObjectShape(d *json.Decoder, out *bytes.Buffer) error {
	out.WriteByte('{')
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s:", key)
		if err := writeShape(d, out); err != nil {
			return err
		}
		out.WriteByte(' ')
	}
	out.WriteByte('}')
	_, err := d.Token()
	return err
}
