package api

import (
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/sim/pyjson"
)

// Log probabilities have the engine's form and no meaning. They depend on the token's id alone, and the alternatives are tokens with
// similar ids.

func logprobOf(token int) float64 { return -1 - float64(token%97)/64 }

// tokenLogprob is the form of /generate: log probability, id, text.
type tokenLogprob [3]any

// tokenLogprobs describes tokens. The first of a prompt has no log probability, because no token is before it.
func tokenLogprobs(tokens []int, prompt bool) []tokenLogprob {
	list := make([]tokenLogprob, len(tokens))
	for i, t := range tokens {
		list[i] = tokenLogprob{pyjson.Float(logprobOf(t)), t, nil}
		if prompt && i == 0 {
			list[i][0] = nil
		}
	}
	return list
}

// alternatives returns n tokens that an answer shows for one, that one first. All have different texts.
func alternatives(token, n int) []int {
	const pairs, count = model.FirstByte + 256 + 26, 26 * 26 // "aa" to "zz"
	list := []int{token}
	for i := 0; len(list) < n; i++ {
		if t := pairs + (token+i)%count; t != token {
			list = append(list, t)
		}
	}
	return list
}

// textLogprobs is the form of /v1/completions.
type textLogprobs struct {
	TextOffset    []int                `json:"text_offset"`
	TokenLogprobs []float64            `json:"token_logprobs"`
	Tokens        []string             `json:"tokens"`
	TopLogprobs   []map[string]float64 `json:"top_logprobs"`
}

func newTextLogprobs(tokens []int, n int) *textLogprobs {
	l := &textLogprobs{TextOffset: []int{}, TokenLogprobs: []float64{}, Tokens: []string{}, TopLogprobs: []map[string]float64{}}
	for _, token := range tokens {
		top := make(map[string]float64)
		for rank, t := range alternatives(token, n) {
			top[model.TokenName(t)] = logprobOf(token) - float64(rank)
		}
		l.TextOffset = append(l.TextOffset, -1)
		l.TokenLogprobs = append(l.TokenLogprobs, logprobOf(token))
		l.Tokens = append(l.Tokens, model.TokenName(token))
		l.TopLogprobs = append(l.TopLogprobs, top)
	}
	return l
}

// chatLogprobs is the form of chat.
type chatLogprobs struct {
	Content []chatTokenLogprob `json:"content"`
}

type chatAlternative struct {
	Token   string  `json:"token"`
	Bytes   []int   `json:"bytes"`
	Logprob float64 `json:"logprob"`
}

type chatTokenLogprob struct {
	chatAlternative
	TopLogprobs []chatAlternative `json:"top_logprobs"`
}

func newChatLogprobs(tokens []int, n int) *chatLogprobs {
	l := &chatLogprobs{Content: []chatTokenLogprob{}}
	for _, token := range tokens {
		one := chatTokenLogprob{newAlternative(token, 0), []chatAlternative{}}
		for rank, t := range alternatives(token, n)[:n] {
			one.TopLogprobs = append(one.TopLogprobs, newAlternative(t, rank))
		}
		l.Content = append(l.Content, one)
	}
	return l
}

func newAlternative(token, rank int) chatAlternative {
	a := chatAlternative{Token: model.TokenName(token), Logprob: logprobOf(token) - float64(rank), Bytes: []int{}}
	for _, b := range []byte(a.Token) {
		a.Bytes = append(a.Bytes, int(b))
	}
	return a
}
