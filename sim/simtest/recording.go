package simtest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// Recording is one exchange with a real engine.
type Recording struct{ Request, Response []byte }

const (
	responseMark = "=====8<===== response bytes =====8<=====\n"
	noteMark     = "=====8<===== note:"
)

// Recordings says how the answers of one protocol are compared with recordings of the real engine, in testdata/golden.
type Recordings struct {
	// Free are the members whose values differ from run to run. Only their types have to agree.
	Free []string
	// Counts are the members that are exact only if the recorded prompt has token ids, because text splits into other tokens here.
	Counts []string
	// Optional are the members that an answer has or lacks by its timing, and that are not compared.
	Optional []string
	// Varying matches what differs from run to run in the text of errors.
	Varying *regexp.Regexp
}

// Read reads a recording.
func (r *Recordings) Read(t *testing.T, name string) Recording {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "golden", name+".http"))
	if err != nil {
		t.Fatal(err)
	}
	data, _, _ = bytes.Cut(data, []byte(noteMark))
	request, response, ok := bytes.Cut(data, []byte(responseMark))
	if !ok {
		t.Fatalf("%s has no response", name)
	}
	// The recorder puts a line end before its mark.
	return Recording{bytes.TrimSuffix(request, []byte("\n")), response}
}

// Wire is an answer as it was sent, in parts.
type Wire struct {
	Status string
	Header map[string]string // lower-case names
	Body   []byte
	Chunks []string // of a chunked body
}

// ParseWire reads the bytes of an answer.
func ParseWire(t *testing.T, data []byte) Wire {
	t.Helper()
	head, body, _ := bytes.Cut(data, []byte("\r\n\r\n"))
	lines := strings.Split(string(head), "\r\n")
	w := Wire{Status: lines[0], Header: make(map[string]string), Body: body}
	for _, l := range lines[1:] {
		name, value, _ := strings.Cut(l, ": ")
		w.Header[strings.ToLower(name)] = value
	}
	if w.Header["transfer-encoding"] != "chunked" {
		return w
	}
	r := bufio.NewReader(bytes.NewReader(body))
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("reading chunks of %q: %v", data, err)
		}
		var size int
		if _, err := fmt.Sscanf(line, "%x", &size); err != nil {
			t.Fatalf("reading the chunk size %q: %v", line, err)
		}
		chunk := make([]byte, size+2)
		if _, err := io.ReadFull(r, chunk); err != nil {
			t.Fatalf("reading a chunk: %v", err)
		}
		if size == 0 {
			return w
		}
		w.Chunks = append(w.Chunks, string(chunk[:size]))
	}
}

// Exchange sends a recorded request to an engine, byte for byte, and returns the bytes of the answer.
func Exchange(t *testing.T, url string, request []byte) []byte {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(Timeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(request); err != nil {
		t.Fatal(err)
	}
	var raw bytes.Buffer
	r := bufio.NewReader(io.TeeReader(conn, &raw))
	method, _, _ := strings.Cut(string(request), " ")
	resp, err := http.ReadResponse(r, &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return raw.Bytes()
}

// shape writes a JSON document with its members in order, values where they have to agree, and types elsewhere.
// Lists of plain values become one element.
func (r *Recordings) shape(t *testing.T, doc string, exactCounts bool) string {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(doc))
	d.UseNumber()
	var b strings.Builder
	if err := r.writeShape(&b, d, "", exactCounts); err != nil {
		t.Fatalf("reading %q: %v", doc, err)
	}
	return b.String()
}

func (r *Recordings) writeShape(b *strings.Builder, d *json.Decoder, member string, exactCounts bool) error {
	token, err := d.Token()
	if err != nil {
		return err
	}
	open, ok := token.(json.Delim)
	if !ok {
		b.WriteString(r.leaf(token, member, exactCounts))
		return nil
	}
	if member == "bytes" { // of a token, which may have none
		b.WriteString("<bytes>")
		b = new(strings.Builder)
	}
	fmt.Fprint(b, open)
	last := ""
	for d.More() {
		name := member
		if open == '{' {
			key, err := d.Token()
			if err != nil {
				return err
			}
			name = key.(string)
			if anyKeys.MatchString(member) && !alternativeKeys.MatchString(name) {
				name = "*"
			}
		}
		if open == '{' && slices.Contains(r.Optional, name) {
			if err := r.writeShape(new(strings.Builder), d, name, exactCounts); err != nil {
				return err
			}
			continue
		}
		if open == '{' {
			b.WriteString(name + ":")
		}
		var item strings.Builder
		if err := r.writeShape(&item, d, name, exactCounts); err != nil {
			return err
		}
		if open == '{' || item.String() != last {
			b.WriteString(item.String() + ",")
		}
		last = item.String()
	}
	end, err := d.Token()
	fmt.Fprint(b, end)
	return err
}

// anyKeys are the members that are maps from tokens in one API, and lists of objects with alternativeKeys in another.
var (
	anyKeys         = regexp.MustCompile(`^(top_logprobs|prompt_logprobs)$`)
	alternativeKeys = regexp.MustCompile(`^(token|logprob|bytes)$`)
)

func (r *Recordings) leaf(token json.Token, member string, exactCounts bool) string {
	kind := fmt.Sprintf("<%T>", token)
	if n, ok := token.(json.Number); ok && strings.ContainsAny(n.String(), ".e") {
		kind = "<float>"
	}
	if token == nil {
		kind = "null"
	}
	switch {
	case slices.Contains(r.Free, member) || anyKeys.MatchString(member) || member == "*" || member == "stop_reason" && kind == "<json.Number>":
		return kind
	case slices.Contains(r.Counts, member) && !exactCounts:
		return kind
	}
	return r.mask(fmt.Sprint(token))
}

// Compare compares an answer with a recording. exactCounts says that the recorded prompt has token ids.
func (r *Recordings) Compare(t *testing.T, got, want Wire, exactCounts bool) {
	t.Helper()
	if got.Status != want.Status {
		t.Errorf("status %q, recorded %q (body %.300s)", got.Status, want.Status, got.Body)
	}
	compareHeaders(t, got.Header, want.Header)
	switch {
	case want.Header["transfer-encoding"] == "chunked":
		r.compareEvents(t, got.Chunks, want.Chunks, exactCounts)
	case strings.Contains(want.Status, " 200 "):
		if len(want.Body) == 0 {
			if len(got.Body) != 0 {
				t.Errorf("body %q, recorded none", got.Body)
			}
			return
		}
		if want.Header["content-type"] != "application/json" && !strings.HasPrefix(want.Header["content-type"], "application/json;") {
			if !bytes.Equal(got.Body, want.Body) {
				t.Errorf("body %q, recorded %q", got.Body, want.Body)
			}
			return
		}
		if g, w := r.shape(t, string(got.Body), exactCounts), r.shape(t, string(want.Body), exactCounts); g != w {
			t.Errorf("body\n%s\nrecorded\n%s\nas sent: %s", g, w, got.Body)
		}
	default:
		if g, w := r.mask(string(got.Body)), r.mask(string(want.Body)); g != w {
			t.Errorf("body\n%s\nrecorded\n%s", g, w)
		}
	}
}

// mask replaces what differs from run to run in the text of an error.
func (r *Recordings) mask(text string) string {
	if r.Varying == nil {
		return text
	}
	return r.Varying.ReplaceAllString(text, "*")
}

func compareHeaders(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, value := range want {
		g, ok := got[name]
		varies := name == "date" || name == "content-length"
		if !ok || !varies && g != value {
			t.Errorf("header %s: %q, recorded %q", name, g, value)
		}
	}
	for name, value := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("header %s: %q was not recorded", name, value)
		}
	}
}

// compareEvents compares streams event by event. Consecutive events of one shape count once, because the texts of tokens differ,
// and with them the number of events without text.
func (r *Recordings) compareEvents(t *testing.T, got, want []string, exactCounts bool) {
	t.Helper()
	g, w := r.eventShapes(t, got, exactCounts), r.eventShapes(t, want, exactCounts)
	if !slices.Equal(g, w) {
		t.Errorf("events\n%s\nrecorded\n%s", strings.Join(g, "\n"), strings.Join(w, "\n"))
	}
}

func (r *Recordings) eventShapes(t *testing.T, chunks []string, exactCounts bool) []string {
	t.Helper()
	var shapes []string
	for _, c := range chunks {
		event, ok := strings.CutSuffix(c, "\n\n")
		if !ok || strings.Contains(event, "\n\n") {
			t.Errorf("chunk %q is not one event", c)
		}
		head, data, _ := strings.Cut(event, "data: ")
		switch {
		case data == "[DONE]", strings.HasPrefix(data, `{"error"`):
			shapes = append(shapes, r.mask(event))
		default:
			data = numbersInOrder.ReplaceAllString(data, `"sequence_number":0`)
			shapes = append(shapes, head+r.shape(t, data, exactCounts))
		}
	}
	return slices.Compact(shapes)
}

// numbersInOrder matches the numbers of events of /v1/responses, which differ because events without text are not sent.
var numbersInOrder = regexp.MustCompile(`"sequence_number":\d+`)
