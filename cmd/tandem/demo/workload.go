package demo

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/pd"
)

// class is one kind of request, with the results that are allowed.
type class struct {
	name   string
	api    pd.API
	stream bool
	mode   pd.Mode
	words  span // length of the user's message
	want   []pd.Reason
}

// span is a range, both ends included.
type span struct{ least, most int }

func (s span) draw(r *rand.Rand) int { return s.least + r.IntN(s.most-s.least+1) }

var (
	// few words are far below the threshold; many are as far above it, even beyond the beginning that conversations share.
	few  = span{12, 30}
	many = span{280, 700}
	// answerTokens is the length of answers. The engines ignore an earlier end.
	answerTokens = span{16, 32}
)

var (
	staysLocal = []pd.Reason{pd.ShortPrompt, pd.BelowThreshold}
	goesRemote = []pd.Reason{pd.Uncached}
)

// singles are the classes of requests outside conversations that all engines serve.
var singles = []class{
	{"short chat", pd.APIChat, false, pd.ModeAuto, few, staysLocal},
	{"short completion", pd.APICompletions, true, pd.ModeAuto, few, staysLocal},
	{"long chat", pd.APIChat, true, pd.ModeAuto, many, goesRemote},
	{"long completion", pd.APICompletions, false, pd.ModeAuto, many, goesRemote},
	{"short chat, forced", pd.APIChat, false, pd.ModeForce, few, []pd.Reason{pd.Forced}},
	{"long, bypassed", pd.APICompletions, true, pd.ModeBypass, many, []pd.Reason{pd.Bypassed}},
}

// The classes of a conversation. Where decode engines have prefix caches, its later turns are local on the pod that computed the earlier
// ones, if that pod is not too busy.
var (
	firstTurn = class{"chat, first turn", pd.APIChat, true, pd.ModeAuto, many, goesRemote}
	laterTurn = class{"chat, later turns", pd.APIChat, true, pd.ModeAuto, few, []pd.Reason{pd.BelowThreshold, pd.Uncached}}
)

// turns is the number of turns in a conversation.
const turns = 4

// turn is one message of the user.
type turn struct {
	class  *class
	words  string
	tokens int // of the answer
}

// thread is a sequence of requests. All but conversations have one turn.
type thread struct {
	system string // "": no system message
	turns  []turn
}

// workload returns the threads of each round, one of every kind. They are the same in every run.
func workload(of *engine, rounds int) (all [][]thread) {
	r := rand.New(rand.NewPCG(1, 2))
	system := "You answer for a library. " + prose(r, 60)
	for range rounds {
		var round []thread
		for i := range of.singles {
			round = append(round, thread{turns: []turn{draw(r, &of.singles[i])}})
		}
		talk := thread{system: system, turns: []turn{draw(r, &firstTurn)}}
		for range turns - 1 {
			talk.turns = append(talk.turns, draw(r, &of.laterTurns))
		}
		all = append(all, append(round, talk))
	}
	return all
}

func draw(r *rand.Rand, c *class) turn {
	return turn{c, prose(r, c.words.draw(r)), answerTokens.draw(r)}
}

var vocabulary = strings.Fields("a the of to and river stone paper winter morning window letter engine garden market bridge copper " +
	"silver quiet narrow bright heavy early late carried opened followed measured counted remembered answered between under above " +
	"within without toward against because while every another several seven eleven twenty city harbour mountain valley forest " +
	"language history music machine number picture question reason shadow summer travel village weather")

// prose returns random words, so that no prompt has another one's KV in a prefix cache.
func prose(r *rand.Rand, words int) string {
	var b strings.Builder
	for i := range words {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(vocabulary[r.IntN(len(vocabulary))])
	}
	return b.String() + "."
}

// message is one message of a chat.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// question is one request.
type question struct {
	class  *class
	body   []byte
	tokens int // of the answer
}

// ask returns the question of a turn for engines of a kind. history is the chat before it. TensorRT-LLM refuses members that it does
// not know, so that token ids are requested only where answers have them.
func (t turn) ask(of *engine, history []message) (question, error) {
	body := map[string]any{"model": modelName, "max_tokens": t.tokens, "ignore_eos": true, "temperature": 0,
		"stream": t.class.stream}
	if !slices.Contains(of.textOnly, t.class.api) {
		body["return_token_ids"] = true
	}
	if t.class.stream {
		body["stream_options"] = map[string]bool{"include_usage": true}
	}
	switch t.class.api {
	case pd.APIChat:
		body["messages"] = append(history[:len(history):len(history)], message{"user", t.words})
	case pd.APISGLang:
		body = map[string]any{"text": t.words, "sampling_params": map[string]any{"max_new_tokens": t.tokens, "ignore_eos": true, "temperature": 0}}
	default:
		body["prompt"] = t.words
	}
	b, err := json.Marshal(body)
	if err != nil {
		return question{}, fmt.Errorf("writing a request: %w", err)
	}
	return question{t.class, b, t.tokens}, nil
}
