package merge

import (
	"bytes"
	"math"
	"strconv"

	"github.com/tandem-serving/tandem/pd/body"
)

// The counts of a usage object that are added up. total_tokens follows from them.
const (
	completion = iota
	reasoning
	reasoningDetail
	counts
)

// usage adds up the tokens of choices.
type usage struct {
	sum, template [counts]int64 // template: of the answer whose usage object is used
	cached        []byte        // the prompt_tokens_details of choice 1, raw
}

// number returns an integer member, 0 if it is none.
func number(data []byte, m body.Member) int64 {
	if m.Kind != body.Number {
		return 0
	}
	n, err := strconv.ParseInt(string(data[m.Value.Start:m.Value.End]), 10, 64)
	if err != nil || n < 0 || n > math.MaxInt32 {
		return 0
	}
	return n
}

// add adds the counts of a choice's answer. template says that its usage object becomes the merged one.
func (u *usage) add(data []byte, members []body.Member, choice int, template bool) {
	var of [counts]int64
	for _, m := range members {
		switch m.Want {
		case wPromptDetails:
			if choice == 1 {
				u.cached = bytes.Clone(data[m.Value.Start:m.Value.End])
			}
		case wCompletion:
			of[completion] = number(data, m)
		case wReasoning:
			of[reasoning] = number(data, m)
		case wReasoningDetail:
			of[reasoningDetail] = number(data, m)
		}
	}
	for k, n := range of {
		u.sum[k] += n
	}
	if template {
		u.template = of
	}
}

// value appends what replaces a member of the template's usage object; ok is false if the member stays.
func (u *usage) value(dst, data []byte, m body.Member) (_ []byte, ok bool) {
	switch {
	case m.Want == wDetails && m.Kind == body.Null && u.sum[reasoningDetail] > 0: // engines leave it out if no token was of reasoning
		dst = strconv.AppendInt(append(dst, `{"reasoning_tokens":`...), u.sum[reasoningDetail], 10)
		return append(dst, '}'), true
	case m.Want == wPromptDetails && u.cached != nil:
		return append(dst, u.cached...), true
	case m.Kind != body.Number:
		return dst, false
	}
	switch m.Want {
	case wCompletion:
		return strconv.AppendInt(dst, u.sum[completion], 10), true
	case wReasoning:
		return strconv.AppendInt(dst, u.sum[reasoning], 10), true
	case wReasoningDetail:
		return strconv.AppendInt(dst, u.sum[reasoningDetail], 10), true
	case wTotal:
		return strconv.AppendInt(dst, number(data, m)-u.template[completion]+u.sum[completion], 10), true
	}
	return dst, false
}
