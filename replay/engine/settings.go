package engine

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Settings are what a table may say of its engine, in comments such as "# --kv-tokens=448000". 0 or "" is not said. The names are
// those of the flags of tandem replay that have precedence.
type Settings struct {
	Scheduler   string // vllm or sglang
	KVTokens    int    // tokens that its KV cache holds
	KVBytes     int    // of one token
	BlockTokens int    // tokens of a block
	StepTokens  int    // most tokens of a step
	Sequences   int    // most requests that run
	// Request is how long a request takes besides its steps, until its first token: HTTP, the tokenizer, processes that pass it on.
	// A table that says nothing of it has times of kernels, to which the overhead of steps is added.
	Request *time.Duration
}

// settingMark begins the comment.
const settingMark = "# --"

// numbers returns the settings that are numbers, by their flags.
func (s *Settings) numbers() []setting {
	return []setting{{"kv-tokens", &s.KVTokens}, {"kv-bytes-per-token", &s.KVBytes}, {"block-size", &s.BlockTokens},
		{"max-num-batched-tokens", &s.StepTokens}, {"max-num-seqs", &s.Sequences}}
}

type setting struct {
	flag string
	to   *int
}

// Write writes the comments.
func (s *Settings) Write(w io.Writer) {
	if s.Scheduler != "" {
		fmt.Fprintf(w, "%sscheduler=%s\n", settingMark, s.Scheduler)
	}
	for _, one := range s.numbers() {
		if *one.to > 0 {
			fmt.Fprintf(w, "%s%s=%d\n", settingMark, one.flag, *one.to)
		}
	}
	if s.Request != nil {
		fmt.Fprintf(w, "%srequest-overhead=%v\n", settingMark, *s.Request)
	}
}

// readSettings reads the comments of a table.
func readSettings(table []byte) (s Settings, err error) {
	lines := bufio.NewScanner(bytes.NewReader(table))
	for n := 1; lines.Scan(); n++ {
		text, ok := strings.CutPrefix(lines.Text(), settingMark)
		if !ok {
			continue
		}
		flag, value, _ := strings.Cut(text, "=")
		if err := s.set(flag, value); err != nil {
			return s, fmt.Errorf("reading a table of step times: line %d: %w", n, err)
		}
	}
	return s, lines.Err()
}

func (s *Settings) set(flag, value string) error {
	switch flag {
	case "scheduler":
		if s.Scheduler = value; value != "vllm" && value != "sglang" {
			return fmt.Errorf("the scheduler is %q, want vllm or sglang", value)
		}
		return nil
	case "request-overhead":
		d, err := time.ParseDuration(value)
		if err != nil || d < 0 {
			return fmt.Errorf("request-overhead cannot be %q", value)
		}
		s.Request = &d
		return nil
	}
	for _, one := range s.numbers() {
		if one.flag == flag {
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 {
				return fmt.Errorf("%s cannot be %q", flag, value)
			}
			*one.to = n
			return nil
		}
	}
	return fmt.Errorf("a table cannot say --%s", flag)
}
