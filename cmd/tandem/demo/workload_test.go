package demo

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/read"
	"github.com/tandem-serving/tandem/pd"
)

func TestWorkload(t *testing.T) {
	rounds := workload(&vllm, 8)
	if !reflect.DeepEqual(rounds, workload(&vllm, 8)) {
		t.Error("two runs would send different requests")
	}
	if n := count(rounds); n != 8*(len(singles)+turns) {
		t.Errorf("%d requests", n)
	}
	seen := map[string]bool{}
	var streamed, whole [2]bool // chat, completions
	for _, round := range rounds {
		for _, thread := range round {
			for _, turn := range thread.turns {
				if beginning := turn.words[:40]; seen[beginning] {
					t.Errorf("two prompts begin with %q", beginning)
				} else {
					seen[beginning] = true
				}
				api := 0
				if turn.class.api == pd.APICompletions {
					api = 1
				}
				if turn.class.stream {
					streamed[api] = true
				} else {
					whole[api] = true
				}
			}
		}
	}
	if all := [2]bool{true, true}; streamed != all || whole != all {
		t.Errorf("streamed %v, whole %v: want chat and completions", streamed, whole)
	}
}

// The picker's estimate of a prompt must be on the expected side of the threshold for its class.
func TestPromptsAreOnTheirSideOfTheThreshold(t *testing.T) {
	for name, e := range engines {
		t.Run(name, func(t *testing.T) { sidesOfTheThreshold(t, e) })
	}
}

func sidesOfTheThreshold(t *testing.T, e *engine) {
	for _, round := range workload(e, 50) {
		for _, thread := range round {
			system := 0
			var history []message
			if thread.system != "" {
				history = []message{{"system", thread.system}}
				system = len(thread.system) / 4
			}
			for _, turn := range thread.turns {
				q, err := turn.ask(e, history)
				if err != nil {
					t.Fatal(err)
				}
				tokens := estimate(t, &q)
				switch turn.class.words {
				case few:
					if own := len(turn.words) / 4; own+answerTokens.most*2 >= threshold {
						t.Errorf("%s: %d tokens are more than few", turn.class.name, own)
					}
				case many:
					if tokens-system < threshold+32 {
						t.Errorf("%s: %d tokens, of which %d may be cached, are not many", turn.class.name, tokens, system)
					}
				}
				history = append(history, message{"user", turn.words}, message{"assistant", "as it was"})
			}
		}
	}
}

// estimate returns the picker's estimate of the tokens of a prompt.
func estimate(t *testing.T, q *question) int {
	t.Helper()
	var r read.Reader
	r.Reset(read.Head{Method: "POST", Path: q.class.api.Path(), ContentType: "application/json",
		Reads: epp.NewAPISet(append(pd.APIs(), pd.APISGLang)...)}, 0, epp.PromptSpec{})
	if err := r.Write(q.body); err != nil {
		t.Fatal(err)
	}
	request, err := r.Close(nil)
	if err != nil {
		t.Fatal(err)
	}
	return request.Prompt.Tokens
}

func TestConversationGoesOn(t *testing.T) {
	history := []message{{"system", "be brief"}, {"user", "a"}, {"assistant", "b"}}
	for _, words := range []string{"c", "d"} { // the first turn must not change the history of the second
		q, err := turn{class: &laterTurn, words: words, tokens: 16}.ask(&vllm, history)
		if err != nil {
			t.Fatal(err)
		}
		var body struct {
			Messages  []message
			MaxTokens int `json:"max_tokens"`
			Stream    bool
		}
		if err := json.Unmarshal(q.body, &body); err != nil {
			t.Fatal(err)
		}
		want := append(history[:3:3], message{"user", words})
		if !reflect.DeepEqual(body.Messages, want) || body.MaxTokens != 16 || !body.Stream {
			t.Errorf("%s", q.body)
		}
	}
}
