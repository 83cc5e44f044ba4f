package relay

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd/body"
)

// An answer that broke off ends with what the engine sent of it.
func TestRenamedAnswerBreaksOff(t *testing.T) {
	r := &renaming{ReadCloser: io.NopCloser(io.MultiReader(strings.NewReader(`{"model":"big`), failing{})), by: newRenamer(false)}
	got, err := io.ReadAll(r)
	if string(got) != `{"model":"big` || err == nil {
		t.Errorf("%q, %v", got, err)
	}
}

const engineEvents = "data: {\"model\":\"big-7b\",\"choices\":[{\"text\":\" big-7b\"}]}\n\n" +
	"data: {\"model\":\"big-7b\",\"choices\":[],\"usage\":{\"prompt_tokens\":40,\"completion_tokens\":1}}\n\ndata: [DONE]\n\n"

func newRenamer(events bool) *body.Renamer { return body.NewRenamer("big-7b", "llama", events) }

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// An answer is read through a buffer of any size.
func TestRenamingByAnyBuffer(t *testing.T) {
	for size := 1; size < 40; size++ {
		r := &renaming{ReadCloser: io.NopCloser(strings.NewReader(engineEvents)), by: newRenamer(true)}
		var got []byte
		for p := make([]byte, size); ; {
			n, err := r.Read(p)
			got = append(got, p[:n]...)
			if err == io.EOF {
				break
			}
			if n == 0 || err != nil {
				t.Fatalf("%d bytes: %d, %v", size, n, err)
			}
		}
		if want := strings.ReplaceAll(engineEvents, `"model":"big-7b"`, `"model":"llama"`); string(got) != want {
			t.Fatalf("%d bytes: %q", size, got)
		}
	}
}

// A reader that waits for the next token has a small buffer here too, and one that reads in bulk a large one.
func TestRenamingHoldsNoMoreThanItsReader(t *testing.T) {
	for _, c := range []struct{ size, want int }{{1, waitBuffer}, {waitBuffer, waitBuffer}, {burstBuffer, burstBuffer}, {1 << 20, burstBuffer}} {
		r := &renaming{ReadCloser: io.NopCloser(strings.NewReader(engineEvents)), by: newRenamer(true)}
		if _, err := r.Read(make([]byte, c.size)); err != nil || len(r.buf) != c.want {
			t.Errorf("a read of %d bytes holds %d, %v; want %d", c.size, len(r.buf), err, c.want)
		}
	}
}

// BenchmarkRenaming reads an answer of 1,000 events.
func BenchmarkRenaming(b *testing.B) {
	event := "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"big-7b\"," +
		"\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n"
	answer := strings.Repeat(event, 1000)
	b.SetBytes(int64(len(answer)))
	b.ReportAllocs()
	for b.Loop() {
		r := &renaming{ReadCloser: io.NopCloser(strings.NewReader(answer)), by: newRenamer(true)}
		n, err := io.CopyBuffer(io.Discard, struct{ io.Reader }{r}, make([]byte, burstBuffer))
		if want := len(answer) - 1000*(len("big-7b")-len("llama")); err != nil || n != int64(want) {
			b.Fatal(fmt.Errorf("%d bytes, %w", n, err))
		}
	}
}
