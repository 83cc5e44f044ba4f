package matrix

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tandem-serving/tandem/pd"
)

// row is one cell of the matrix, and one way to ask.
type row struct {
	strike
	situation situation
	api       pd.API
	stream    bool
	keeper    keeper
}

// rows lists every strike with every form and API, each with a candidate left and without. Where a forced request or an
// empty budget comes to something else, those are rows as well: half of the forms and APIs, since they say the same.
// All of that is with a keeper that works. What another one, or none, makes a difference to is listed with that as well.
func rows() (list []row) {
	for _, s := range strikes() {
		for _, streamed := range []bool{false, true} {
			if s.form != anyForm && (s.form == stream) != streamed {
				continue
			}
			for _, api := range []pd.API{pd.APICompletions, pd.APIChat} {
				for in := range situations {
					r := row{s, in, api, streamed, works}
					if in > last && (s.expected(in) == s.expected(last) || streamed != (api == pd.APIChat)) {
						continue
					}
					list = append(list, r)
					if in == last {
						list = append(list, r.otherwise()...)
					}
				}
			}
		}
	}
	return list
}

// otherwise is the row with other keepers. Where prefill is told directly, that is every form and API without a keeper, and
// half of them with those that fail. Of what comes to the same without a keeper it is one form, to see that it does; where
// that takes seconds, none.
func (r row) otherwise() (list []row) {
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
	if r.keeper != works {
		name += "/" + string(r.keeper)
	}
	return name
}

// body is the request: a prompt of several blocks that no engine has seen, since every row has engines of its own.
func (r row) body() []byte {
	m := map[string]any{"model": "tiny", "max_tokens": 8, "temperature": 0, "ignore_eos": true, "return_token_ids": true, "stream": r.stream}
	if r.api == pd.APIChat {
		m["messages"] = []any{map[string]any{"role": "user", "content": strings.Repeat("the quick brown fox ", 6)}}
	} else {
		ids := make([]int, 100)
		for i := range ids {
			ids[i] = 20 + i*7
		}
		m["prompt"] = ids
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return b
}
