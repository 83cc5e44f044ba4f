package continuation

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"
)

// textLogprobs are the log probabilities of a completion's event.
type textLogprobs struct {
	Tokens        []string          `json:"tokens"`
	TokenLogprobs []json.Number     `json:"token_logprobs"`
	TopLogprobs   []json.RawMessage `json:"top_logprobs"`
}

// alternative is a token with its log probability, as the engine writes it.
type alternative struct {
	token   string
	logprob json.Number
}

var (
	errLogprobs = errors.New("log probabilities in another form than vLLM's")
	// errAmbiguous says that two alternatives may have had the same text, so that only one is in the completion's event.
	errAmbiguous = errors.New("alternatives cannot be told apart")
)

// chatLogprobs makes the log probabilities of an event of chat, with some alternatives for each token, of those of a completion. They lack
// those of its last tokens.
func chatLogprobs(of []byte, alternatives, without int) ([]byte, error) {
	var l textLogprobs
	if err := json.Unmarshal(of, &l); err != nil {
		return nil, errLogprobs
	}
	if len(l.TokenLogprobs) != len(l.Tokens) || len(l.TopLogprobs) != len(l.Tokens) {
		return nil, errLogprobs
	}
	out := []byte(`{"content":[`)
	for i, token := range l.Tokens[:max(0, len(l.Tokens)-without)] {
		if i > 0 {
			out = append(out, ',')
		}
		top, err := topOf(l.TopLogprobs[i], alternatives)
		if err != nil {
			return nil, err
		}
		out = append(appendAlternative(out, alternative{token, l.TokenLogprobs[i]}), `,"top_logprobs":[`...)
		for k, a := range top {
			if k > 0 {
				out = append(out, ',')
			}
			out = append(appendAlternative(out, a), '}')
		}
		out = append(out, `]}`...)
	}
	return append(out, `]}`...), nil
}

// appendAlternative appends a token without the closing brace.
func appendAlternative(dst []byte, a alternative) []byte {
	dst = append(appendText(append(dst, `{"token":`...), a.token), `,"logprob":`...)
	dst = append(append(dst, a.logprob...), `,"bytes":[`...)
	for i := range len(a.token) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, int64(a.token[i]), 10)
	}
	return append(dst, ']')
}

// topOf returns the first n alternatives of a token, of an object in the engine's order: the token itself, then the most likely ones. It
// has one more if the token is none of the n most likely ones. Texts are the object's keys, so tokens of one text are only one of them;
// that is noticed by their number, or, where it says nothing, feared of texts that are parts of characters.
func topOf(object json.RawMessage, n int) ([]alternative, error) {
	if n == 0 {
		return nil, nil
	}
	in := json.NewDecoder(bytes.NewReader(object))
	in.UseNumber()
	if open, err := in.Token(); err != nil || open != json.Delim('{') {
		return nil, errLogprobs
	}
	var all []alternative
	parts := false
	for in.More() {
		key, err := in.Token()
		value, also := in.Token()
		token, text := key.(string)
		logprob, number := value.(json.Number)
		if err != nil || also != nil || !text || !number {
			return nil, errLogprobs
		}
		parts = parts || token == "" || strings.ContainsRune(token, utf8.RuneError)
		all = append(all, alternative{token, logprob})
	}
	if len(all) < n || len(all) == n && parts && leastLikely(all) {
		return nil, errAmbiguous
	}
	return all[:n], nil
}

// leastLikely reports whether no alternative is less likely than the first one.
func leastLikely(all []alternative) bool {
	first, err := all[0].logprob.Float64()
	for _, a := range all[1:] {
		other, also := a.logprob.Float64()
		if err == nil && also == nil && other < first {
			return false
		}
	}
	return true
}
