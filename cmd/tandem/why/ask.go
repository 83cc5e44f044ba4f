package why

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pd/recent"
)

// getter sends a GET for a path to the admin port of a program. The caller closes the body.
type getter func(ctx context.Context, path string) (*http.Response, error)

// place is a program that may remember a request.
type place struct {
	name string // of the pod, or its address
	ip   string // of the pod; "" = unknown
	get  getter
}

// places are whom to ask.
type places struct{ pickers, sidecars []place }

// told is what the programs remember of a request.
type told struct {
	RequestID string   `json:"request_id"`
	Stories   []story  `json:"stories"`
	Troubles  []string `json:"troubles,omitempty"` // why programs did not answer

	mu    sync.Mutex
	asked map[string]bool // programs, and whether they answered
}

// note notes whether a program answered.
func (t *told) note(name string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, again := t.asked[name]; err != nil && !again {
		t.Troubles = append(t.Troubles, fmt.Sprintf("%s does not tell: %v", name, err))
	}
	t.asked[name] = err == nil
}

// answered returns how many programs answered.
func (t *told) answered() (n int) {
	for _, ok := range t.asked {
		if ok {
			n++
		}
	}
	return n
}

// story is one request: what its picker and its sidecar tell. One of them may be missing.
type story struct {
	Picker  string         `json:"picker,omitempty"` // who tells
	Picked  *recent.Picked `json:"picked,omitempty"`
	Sidecar string         `json:"sidecar,omitempty"`
	Served  *recent.Served `json:"served,omitempty"`
}

// at returns when the request began or, where that is not known, ended.
func (s *story) at() time.Time {
	if s.Served != nil {
		return s.Served.Began
	}
	return s.Picked.Ended
}

// found is an answer with its source.
type found[T any] struct {
	by  string
	one *T
}

// tell asks for the request. It asks the sidecars of the pods that a picker names before all others, because in a cluster each
// question needs a connection through the API server.
func (p *places) tell(ctx context.Context, id string) *told {
	t := &told{RequestID: id, asked: map[string]bool{}}
	picked := ask[recent.Picked](ctx, t, p.pickers, id)
	likely, others := p.split(picked)
	served := ask[recent.Served](ctx, t, likely, id)
	if len(served) == 0 {
		served = ask[recent.Served](ctx, t, others, id)
	}
	for _, s := range served {
		plan := s.one.PlanID
		known := func(f found[recent.Picked]) bool { return f.one.PlanID == plan }
		if plan != "" && !slices.ContainsFunc(picked, known) { // the picker got an id that it does not keep
			picked = append(picked, ask[recent.Picked](ctx, t, p.pickers, plan)...)
		}
	}
	t.join(picked, served)
	slices.Sort(t.Troubles)
	return t
}

// split returns the sidecars of the pods that pickers sent the request to, and the others.
func (p *places) split(picked []found[recent.Picked]) (likely, others []place) {
	for _, sidecar := range p.sidecars {
		if sidecar.ip != "" && slices.ContainsFunc(picked, func(f found[recent.Picked]) bool { return f.one.SentTo(sidecar.ip) }) {
			likely = append(likely, sidecar)
		} else {
			others = append(others, sidecar)
		}
	}
	return likely, others
}

// join makes stories, the latest first: those that have the same plan belong together.
func (t *told) join(picked []found[recent.Picked], served []found[recent.Served]) {
	for _, s := range served {
		one := story{Sidecar: s.by, Served: s.one}
		i := slices.IndexFunc(picked, func(f found[recent.Picked]) bool { return f.one.PlanID == s.one.PlanID && s.one.PlanID != "" })
		if i >= 0 {
			one.Picker, one.Picked = picked[i].by, picked[i].one
			picked = slices.Delete(picked, i, i+1)
		}
		t.Stories = append(t.Stories, one)
	}
	for _, f := range picked {
		t.Stories = append(t.Stories, story{Picker: f.by, Picked: f.one})
	}
	slices.SortStableFunc(t.Stories, func(a, b story) int { return b.at().Compare(a.at()) })
}

// parallel bounds how many programs are asked at once.
const parallel = 16

// ask asks programs for a request, and notes those that do not answer.
func ask[T any](ctx context.Context, t *told, from []place, id string) (all []found[T]) {
	var mu sync.Mutex
	var asking sync.WaitGroup
	free := make(chan struct{}, parallel)
	for _, p := range from {
		asking.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			var entries []*T
			err := p.read(ctx, id, &entries)
			t.note(p.name, err)
			mu.Lock()
			defer mu.Unlock()
			for _, e := range entries {
				all = append(all, found[T]{p.name, e})
			}
		})
	}
	asking.Wait()
	slices.SortStableFunc(all, func(a, b found[T]) int { return cmp.Compare(a.by, b.by) })
	return all
}

// answerLimit is the largest answer that is read, in bytes: 100 requests with all their legs.
const answerLimit = 8 << 20

// read reads what the program remembers.
func (p *place) read(ctx context.Context, id string, to any) error {
	resp, err := p.get(ctx, recent.Path+"/"+id)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s (is this its admin port?)", resp.Status)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, answerLimit)).Decode(to); err != nil {
		return fmt.Errorf("reading its answer: %w", err)
	}
	return nil
}

// direct reaches a program at an address.
func direct(address string) getter {
	return func(ctx context.Context, path string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
		if err != nil {
			return nil, err
		}
		req.Close = true // it is asked once or twice
		return http.DefaultClient.Do(req)
	}
}
