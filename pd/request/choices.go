package request

import (
	"math"
	"strconv"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

// Choices returns how many choices the request asks for of each prompt, 1 if it does not say.
func (r *Request) Choices() int {
	if r.choice > 0 {
		return 1
	}
	return r.choices()
}

// choices is Choices of the client's request.
func (r *Request) choices() int {
	want := wN
	switch r.API {
	case pd.APIChat, pd.APICompletions:
	case pd.APIGenerate, pd.APISGLang:
		want = wSamplingN
	default:
		return 1
	}
	n, ok := r.number(want)
	if !ok || n < 1 || n > math.MaxInt32 {
		return 1 // engines refuse such numbers
	}
	return int(n)
}

// Choice returns the request for one of the choices, counted from 0, of this request. It shares body and scan. An Edit of it
// asks for one choice. If the client gave a seed, choice i has that seed plus i: with one seed for all, engines that sample
// reproducibly would give n equal choices.
func (r *Request) Choice(i int) *Request {
	one := *r
	one.choice = i + 1
	return &one
}

// seeds are the members that seed the random numbers of a request.
var seeds = [...]int{wSeed, wSamplingSeed, wSamplingSamplingSeed}

// single makes the changes that Choice promises.
func (e *Edit) single() {
	r := e.of
	if r.choice == 0 {
		return
	}
	for _, want := range [...]int{wN, wSamplingN, wBestOf} {
		e.Drop(r.table.members.Path(want))
	}
	for _, want := range seeds {
		m, ok := r.scan.Find(want)
		if !ok || m.Kind != body.Number || r.choice == 1 {
			continue
		}
		if seed, err := strconv.ParseInt(string(r.Body.Bytes(m.Value)), 10, 64); err == nil {
			e.Set(r.table.members.Path(want), strconv.AppendInt(nil, seed+int64(r.choice-1), 10)) // engines take all 64-bit integers
		}
	}
}
