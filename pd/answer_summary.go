package pd

import (
	"errors"
	"fmt"
	"strconv"
)

// End says how an answer ended.
type End uint8

// The ends. Aborted is the zero value: an answer whose end was not reported was aborted.
const (
	EndAborted End = iota // the client left, or the process died
	EndDone               // the answer is complete
	EndError              // the engine or Tandem ended it with an error
)

var ends = [...]string{"aborted", "done", "error"}

// String returns the end's token on the wire.
func (e End) String() string { return ends[e] }

// AnswerSummary reports how an answer ended, and its token counts, in HeaderOutcome (a trailer on streams):
//
//	done|error|aborted;prompt=<n>;cached=<n>;completion=<n>
//
// The counts are the engine's. -1 is a count that the engine did not report; the header leaves it out.
type AnswerSummary struct {
	End                        End
	Prompt, Cached, Completion int64
}

// ParseAnswerSummary parses the value of HeaderOutcome.
func ParseAnswerSummary(value string) (AnswerSummary, error) {
	o := AnswerSummary{Prompt: -1, Cached: -1, Completion: -1}
	head, err := splitParams(value, o.set)
	if err != nil {
		return AnswerSummary{}, fmt.Errorf("reading %s: %w", HeaderOutcome, err)
	}
	for e, name := range ends {
		if name == head {
			o.End = End(e)
			return o, nil
		}
	}
	return AnswerSummary{}, fmt.Errorf("reading %s: must begin with done, error or aborted", HeaderOutcome)
}

func (o *AnswerSummary) set(name, v string) error {
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || v[0] < '0' { // a count has no sign
		return errors.New("must be a number of tokens")
	}
	switch name {
	case "prompt":
		o.Prompt = n
	case "cached":
		o.Cached = n
	case "completion":
		o.Completion = n
	default:
		return errUnknownParam
	}
	return nil
}

// String returns the summary in the form that ParseAnswerSummary parses.
func (o AnswerSummary) String() string {
	b := append(make([]byte, 0, 64), o.End.String()...)
	for _, c := range [...]struct {
		name   string
		tokens int64
	}{{";prompt=", o.Prompt}, {";cached=", o.Cached}, {";completion=", o.Completion}} {
		if c.tokens >= 0 {
			b = strconv.AppendInt(append(b, c.name...), c.tokens, 10)
		}
	}
	return string(b)
}
