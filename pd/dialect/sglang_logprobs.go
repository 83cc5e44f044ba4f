package dialect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

// sglangLogprobs are the log probabilities of a request's prompts, from prefill's answer. Decode's answer has none of them, and those of
// the generated tokens, the first among them.
type sglangLogprobs struct {
	api     pd.API
	prompts []map[string]json.RawMessage // of each prompt: the member of decode's answer, and what belongs in it
	told    map[int64]bool               // the prompts whose log probabilities have gone into an event
}

// The members of SGLang's own call that describe the prompt, and those of chosen ids for each generated token, the first of which
// decode's answer lacks. Each event of a stream repeats them.
var ownLogprobs = []string{"input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs", firstIDs}

const firstIDs = "output_token_ids_logprobs"

// The lists of a completion's logprobs. They begin with the prompt, in a stream those of the first event.
var echoLogprobs = []string{"text_offset", "token_logprobs", "tokens", "top_logprobs"}

// readSGLangLogprobs reads prefill's answer.
func readSGLangLogprobs(api pd.API, answer []byte) (*sglangLogprobs, error) {
	l := &sglangLogprobs{api: api, told: map[int64]bool{}}
	var err error
	if api == pd.APISGLang {
		err = l.readOwn(answer)
	} else {
		err = l.readEcho(answer)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the log probabilities in the prefill answer: %w", err)
	}
	return l, nil
}

// readOwn reads an answer of SGLang's own call: an object, or a list of them for several prompts.
func (l *sglangLogprobs) readOwn(answer []byte) error {
	type prompt struct {
		Meta map[string]json.RawMessage `json:"meta_info"`
	}
	prompts := make([]prompt, 1)
	var err error
	if bytes.HasPrefix(bytes.TrimLeft(answer, " \t\r\n"), []byte("[")) {
		err = json.Unmarshal(answer, &prompts)
	} else {
		err = json.Unmarshal(answer, &prompts[0])
	}
	for _, p := range prompts {
		l.prompts = append(l.prompts, p.Meta)
	}
	return err
}

// readEcho reads a completion. Prefill has generated one token for each prompt, which decode repeats.
func (l *sglangLogprobs) readEcho(answer []byte) error {
	var completion struct {
		Choices []struct {
			Logprobs map[string][]json.RawMessage `json:"logprobs"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(answer, &completion); err != nil {
		return err
	}
	for _, c := range completion.Choices {
		lists := map[string]json.RawMessage{}
		for name, list := range c.Logprobs {
			if len(list) < 2 {
				continue // nothing of the prompt
			}
			b, err := json.Marshal(list[:len(list)-1])
			if err != nil {
				return err
			}
			lists[name] = b[1 : len(b)-1]
		}
		l.prompts = append(l.prompts, lists)
	}
	return nil
}

// complete returns decode's answer, or the data of an event, with the log probabilities. What is not JSON stays as it is, such as [DONE].
func (l *sglangLogprobs) complete(data []byte) []byte {
	if l.api != pd.APISGLang {
		return l.completeEcho(data)
	}
	var scan body.Scanner
	if scan.Scan(listTable, logprobLimits, data) != nil {
		return data
	}
	if scan.Root().Kind == body.Object {
		return l.completeOwn(nil, data, -1)
	}
	var out []byte
	at := int64(0)
	for i, m := range scan.Members() {
		out = l.completeOwn(append(out, data[at:m.Value.Start]...), data[m.Value.Start:m.Value.End], i)
		at = m.Value.End
	}
	return append(out, data[at:]...)
}

// completeOwn appends the object of one prompt. prompt is its number in a list, or -1 if only the object itself may say it.
func (l *sglangLogprobs) completeOwn(out, data []byte, prompt int) []byte {
	var scan body.Scanner
	if scan.Scan(ownTable, logprobLimits, data) != nil {
		return append(out, data...)
	}
	if index, ok := scan.Find(len(ownLogprobs)); ok && prompt < 0 {
		prompt = int(number(data, index))
	}
	prompt = max(prompt, 0)
	at := int64(0)
	for _, m := range scan.Members() {
		if m.Want == len(ownLogprobs) || prompt >= len(l.prompts) {
			continue
		}
		value, end := l.prompts[prompt][ownLogprobs[m.Want]], m.Value.End
		if ownLogprobs[m.Want] == firstIDs {
			if !bytes.HasPrefix(data[m.Value.Start:], []byte("[null")) || len(value) < len("[]") {
				continue
			}
			value, end = value[:len(value)-1], m.Value.Start+int64(len("[null"))
		}
		if value != nil {
			out = append(append(out, data[at:m.Value.Start]...), value...)
			at = end
		}
	}
	return append(out, data[at:]...)
}

// completeEcho returns a completion, or an event of one. The lists of a prompt are completed once.
func (l *sglangLogprobs) completeEcho(data []byte) []byte {
	choice, index := len(echoLogprobs), len(echoLogprobs)+1 // after the lists, in echoTable
	var scan body.Scanner
	if scan.Scan(echoTable, logprobLimits, data) != nil {
		return data
	}
	prompts := map[int64]int64{} // by the end of the choice
	var ends []int64
	for _, m := range scan.Members() {
		switch m.Want {
		case choice:
			ends = append(ends, m.Value.End)
		case index:
			prompts[ends[len(ends)-1]] = number(data, m)
		}
	}
	var out []byte
	at, told := int64(0), []int64{}
	for _, m := range scan.Members() {
		if m.Want >= choice || m.Kind != body.Array {
			continue
		}
		end, _ := slices.BinarySearch(ends, m.Value.Start)
		prompt := prompts[ends[end]]
		if prompt < 0 || prompt >= int64(len(l.prompts)) || l.told[prompt] {
			continue
		}
		told = append(told, prompt)
		prefix := l.prompts[prompt][echoLogprobs[m.Want]]
		if len(prefix) == 0 {
			continue
		}
		out = append(append(out, data[at:m.Value.Start+1]...), prefix...)
		if at = m.Value.Start + 1; m.Count > 0 {
			out = append(out, ',')
		}
	}
	for _, prompt := range told {
		l.told[prompt] = true
	}
	return append(out, data[at:]...)
}

// The members that are found in decode's answers: elements of a list, those of ownLogprobs, those of echoLogprobs.
var (
	listTable = body.NewTable(body.Want{Path: "*"})
	ownTable  = body.NewTable(append(wants("meta_info.", ownLogprobs), body.Want{Path: "index"})...)
	echoTable = body.NewTable(append(wants("choices.*.logprobs.", echoLogprobs), body.Want{Path: "choices.*"}, body.Want{Path: "choices.*.index"})...)
)

func wants(of string, names []string) (all []body.Want) {
	for _, name := range names {
		all = append(all, body.Want{Path: of + name})
	}
	return all
}

// logprobLimits bounds what is found in an answer: the lists of every choice of every prompt.
var logprobLimits = body.Limits{Members: 1 << 16}

// number returns the value of a member that is a small integer, -1 if it is none.
func number(data []byte, m body.Member) int64 {
	n, err := strconv.ParseInt(string(data[m.Value.Start:m.Value.End]), 10, 32)
	if err != nil {
		return -1
	}
	return n
}
