package api

import (
	"slices"
	"strconv"

	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/sim/pyjson"
)

// Log probabilities have the engine's form and no meaning. They depend on the token's id alone, and the alternatives are tokens
// with similar ids.

// textLogprobs is the form of /v1/completions.
type textLogprobs struct {
	TextOffset    []int      `json:"text_offset"`
	TokenLogprobs []*float64 `json:"token_logprobs"`
	Tokens        []string   `json:"tokens"`
	TopLogprobs   []any      `json:"top_logprobs"` // objects with the token itself first, or null
}

// promptAlternatives has the tokens at one position of a prompt, by id; nil at the first position.
type promptAlternatives map[string]promptToken

type promptToken struct {
	Logprob      float64 `json:"logprob"`
	Rank         int     `json:"rank"`
	DecodedToken string  `json:"decoded_token"`
}

func logprobOf(token int) float64 { return -1 - float64(token%97)/64 }

// alternatives returns n tokens that an answer shows for one, that one first.
func alternatives(token, n int) []int {
	list := []int{token}
	for i := 1; i < n; i++ {
		list = append(list, token^i)
	}
	return list
}

// newTextLogprobs describes tokens whose text begins offset characters into the answer. The first prompt of them belong to
// an echoed prompt. Of these the first has no log probability, because no token is before it, and the others are shown in addition
// to n alternatives instead of as one of them.
func newTextLogprobs(tokens []int, prompt, n, offset int) *textLogprobs {
	l := &textLogprobs{}
	for i, token := range tokens {
		l.TextOffset = append(l.TextOffset, offset)
		text := model.TokenName(token)
		l.Tokens = append(l.Tokens, text)
		offset += len([]rune(text))
		if i == 0 && prompt > 0 {
			l.TokenLogprobs = append(l.TokenLogprobs, nil)
			l.TopLogprobs = append(l.TopLogprobs, nil)
			continue
		}
		shown := n
		if i < prompt {
			shown = n + 1
		}
		p := logprobOf(token)
		var top pyjson.Object
		for rank, t := range alternatives(token, shown) {
			name, at := model.TokenName(t), p-float64(rank)
			if i := slices.IndexFunc(top, func(m pyjson.Member) bool { return m.Name == name }); i >= 0 {
				top[i].Value = at // tokens of one text are one member
				continue
			}
			top = append(top, pyjson.Member{Name: name, Value: at})
		}
		l.TokenLogprobs = append(l.TokenLogprobs, &p)
		l.TopLogprobs = append(l.TopLogprobs, top)
	}
	return l
}

func promptLogprobs(tokens []int, n int) []promptAlternatives {
	list := make([]promptAlternatives, len(tokens))
	for i, token := range tokens[1:] {
		at := make(promptAlternatives)
		for rank, t := range alternatives(token, n+1) {
			at[strconv.Itoa(t)] = promptToken{logprobOf(token) - float64(rank), rank + 1, model.TokenName(t)}
		}
		list[i+1] = at
	}
	return list
}

// chatLogprobs is the form of chat.
type chatLogprobs struct {
	Content []chatTokenLogprob `json:"content"`
}

type chatTokenLogprob struct {
	chatAlternative
	TopLogprobs []chatAlternative `json:"top_logprobs"`
}

type chatAlternative struct {
	Token   string  `json:"token"`
	Logprob float64 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

func newChatLogprobs(tokens []int, n int) *chatLogprobs {
	l := &chatLogprobs{}
	for _, token := range tokens {
		p := logprobOf(token)
		one := chatTokenLogprob{chatAlternative: newAlternative(token, p), TopLogprobs: []chatAlternative{}}
		if n > 0 {
			for rank, t := range alternatives(token, n) {
				one.TopLogprobs = append(one.TopLogprobs, newAlternative(t, p-float64(rank)))
			}
		}
		l.Content = append(l.Content, one)
	}
	return l
}

func newAlternative(token int, logprob float64) chatAlternative {
	a := chatAlternative{Token: model.TokenName(token), Logprob: logprob, Bytes: []int{}}
	for _, b := range []byte(a.Token) {
		a.Bytes = append(a.Bytes, int(b))
	}
	return a
}
