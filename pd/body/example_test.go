package body_test

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/tandem-serving/tandem/pd/body"
)

// A request is scanned as it arrives and then sent on with two members changed.
func Example() {
	const (
		stream = iota
		hint
	)
	table := body.NewTable(body.Want{Path: "stream", Once: true}, body.Want{Path: "hint"})

	var b body.Body
	var s body.Scanner
	s.Reset(table, body.Limits{Size: 64 << 20}, nil)
	for _, chunk := range []string{`{"stream": true, "hi`, `nt": {"x": 1}, "seed": 12345678901234567890}`} {
		if _, err := s.Write([]byte(chunk)); err != nil {
			fmt.Println(err)
		}
		b.Append([]byte(chunk))
	}
	if err := s.Close(); err != nil {
		fmt.Println(err)
	}

	var e body.Edit
	e.Reset(&b, s.Root())
	if m, ok := s.Find(stream); ok {
		e.Replace(m, []byte("false"))
	}
	if m, ok := s.Find(hint); ok {
		e.Remove(m)
	}
	e.Add(s.Root(), "max_tokens", []byte("1"))
	segments, err := e.Segments(nil)
	for _, seg := range segments {
		os.Stdout.Write(seg)
	}
	fmt.Println("", e.Len(), err)
	// Output: {"stream": false, "seed": 12345678901234567890,"max_tokens":1} 62 <nil>
}

func ExampleBlank() {
	table := body.NewTable(body.Want{Path: "secret"})
	src := strings.NewReader(`{"prompt":"secret","secret":{"a":1},"n":1}`)
	all := func(int) bool { return true }
	out, err := io.ReadAll(body.NewBlank(src, table, body.Limits{}, all))
	fmt.Printf("%s %v\n", out, err)
	// Output: {"prompt":"secret"                 ,"n":1} <nil>
}

func ExampleEvents() {
	var events body.Events
	for _, chunk := range []string{"data: {\"text\":\"a\"}\n\nda", "ta: [DONE]\n\n"} {
		err := events.Feed([]byte(chunk), func(e body.Event) error {
			fmt.Printf("%s done=%v error=%v\n", e.Data, e.Done(), e.Error())
			return nil
		})
		if err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// {"text":"a"} done=false error=false
	// [DONE] done=true error=false
}
