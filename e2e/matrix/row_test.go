package matrix

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

// row is one cell of the matrix with one kind of request.
type row struct {
	failure
	situation situation
	api       pd.API
	stream    bool
	keeper    keeper
	several   several
}

// several is what a request asks for more than once.
type several string

const (
	one        several = ""
	twoPrompts several = "two prompts"
	twoChoices several = "two choices" // run as two requests, one for each
)

// question is what the tokens of an answer depend on.
type question struct {
	protocol *protocol
	api      pd.API
	several  several
}

func (r row) question() question { return question{r.protocol, r.api, r.several} }

// apis are the APIs that are split.
var apis = []pd.API{pd.APICompletions, pd.APIChat, pd.APIResponses, pd.APIMessages, pd.APIGenerate}

// rows lists every failure with every form and API, each with another candidate and without. Where a forced request or an
// empty budget has another outcome, rows lists these too, with half of the forms and APIs: the other half would test the
// same. The keeper works in all of these; otherKeepers adds rows with other keepers.
//
// Responses, messages and generate are run where the sidecar's way depends on what it reads of them: with the real protocol, and when no
// other candidate is left, so that it serves the request itself.
//
// Made-up protocols have no keeper, and are run with half of the forms and APIs throughout. Those of their rows that take
// seconds have no other candidate. The short form of the tests has streams with another candidate, and whole answers without.
func rows() (list []row) {
	for _, p := range protocols {
		for _, s := range p.failures() {
			for _, streamed := range []bool{false, true} {
				for _, api := range p.apis {
					for in := range situations {
						list = append(list, row{failure: s, situation: in, api: api, stream: streamed, keeper: works}.withKeepers()...)
					}
				}
			}
		}
	}
	return list
}

// withKeepers returns the row with every keeper that it is run with; none if the row would show nothing new.
func (r row) withKeepers() []row {
	half := r.stream == (r.api == pd.APIChat)
	switch {
	case r.form != anyForm && (r.form == stream) != r.stream:
		return nil
	case r.protocol == sglangPair:
		return r.ofSGLang()
	case r.protocol == push:
		return r.ofPush()
	case r.protocol.configure != nil:
		return r.ofMoRIIO()
	case r.situation > last && (!half || r.expected(r.situation) == r.expected(last)):
		return nil
	case r.api != pd.APICompletions && r.api != pd.APIChat:
		if r.protocol == nixl && r.situation == last && !r.quick {
			return []row{r}
		}
		return nil
	case r.protocol == nixl && r.situation == last:
		return append([]row{r}, r.otherKeepers()...)
	case r.protocol == nixl:
		return []row{r}
	case !half: // bodies are read and answers relayed as in vLLM's protocol
		return nil
	case r.quick && r.situation != last, testing.Short() && !r.inShort():
		return nil
	}
	r.keeper = none
	return []row{r}
}

// inShort reports whether a row of a made-up protocol is in the short form of the tests.
func (r row) inShort() bool {
	return r.situation <= last && (r.form != anyForm || r.stream == (r.situation == another))
}

// otherKeepers returns the row with other keepers. Where the sidecar tells prefill directly, these are all forms and APIs
// without a keeper, and half of them with keepers that fail. Where the keeper makes no difference, one form without a
// keeper shows that; rows that take seconds have none.
func (r row) otherKeepers() (list []row) {
	half, differs := r.stream == (r.api == pd.APIChat), r.way() == direct
	for _, k := range []keeper{none, down, unsure} {
		other := r
		other.keeper = k
		if differs && (half || k == none) || half && r.stream && k == none && !r.quick {
			list = append(list, other)
		}
	}
	return list
}

func (r row) String() string {
	f := whole
	if r.stream {
		f = stream
	}
	name := fmt.Sprintf("%s/%s/%s/%s/%s", r.state, r.name, r.situation, f, r.api)
	if r.several != one {
		name += "/" + string(r.several)
	}
	if r.protocol.notices && r.keeper != works {
		name += "/" + string(r.keeper)
	}
	if r.protocol != nixl {
		name = r.protocol.name + "/" + name
	}
	return name
}

// hasTokens reports whether the API's answers have the ids of their tokens.
func (r row) hasTokens() bool { return r.api != pd.APIResponses && r.api != pd.APIMessages }

// body returns the request: a prompt of several blocks. No engine has it cached, since every row has engines of its own.
func (r row) body() []byte {
	switch r.protocol {
	case sglangPair:
		return r.bodyOfSGLang()
	case contextFirst, generationFirst:
		return r.bodyOfTRTLLM()
	}
	m := map[string]any{"model": "tiny", "max_tokens": 8, "temperature": 0, "ignore_eos": true, "return_token_ids": true, "stream": r.stream}
	text := strings.Repeat("the quick brown fox ", 6)
	switch r.api {
	case pd.APIChat, pd.APIMessages:
		m["messages"] = []any{map[string]any{"role": "user", "content": text}}
	case pd.APIResponses:
		delete(m, "max_tokens")
		m["max_output_tokens"], m["input"] = 8, text
	default:
		ids := make([]int, 100)
		for i := range ids {
			ids[i] = 20 + i*7
		}
		m["prompt"] = ids
		if r.api == pd.APIGenerate {
			m = map[string]any{"model": "tiny", "token_ids": ids, "stream": r.stream,
				"sampling_params": map[string]any{"max_tokens": 8, "temperature": 0, "ignore_eos": true}}
		}
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return b
}
