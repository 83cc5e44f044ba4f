package recent

import (
	"encoding/json"
	"net/http"
	"slices"
	"sync"
)

// Entry is what a Store keeps of one request. The Store encodes it as JSON. If its owner may still change it, it is a
// json.Marshaler.
type Entry interface {
	// Is reports whether an id names the entry. That must not change.
	Is(id string) bool
	// Size returns how many bytes of memory the entry takes, about, once it is complete.
	Size() int
}

// Path is where admin ports serve entries: all of the latest at Path, those of one request at Path/{id}.
const Path = "/debug/requests"

// maxShown is the most entries in one answer.
const maxShown = 100

// Store keeps the latest entries. Make it with New. A nil Store keeps nothing. It is safe for concurrent use.
type Store[E Entry] struct {
	mu       sync.Mutex
	ordinary queue[E]
	notable  queue[E]
}

// New makes a store of at most count entries and bytes of memory for each of the two kinds, ordinary and notable. With a count
// of 0 it returns nil.
func New[E Entry](count, bytes int) *Store[E] {
	if count <= 0 {
		return nil
	}
	limits := queue[E]{count: count, bytes: bytes}
	return &Store[E]{ordinary: limits, notable: limits}
}

// Add adds the entry of a request, and forgets the oldest ones of its kind if there are too many.
func (s *Store[E]) Add(e E, notable bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if notable {
		s.notable.add(e)
		return
	}
	s.ordinary.add(e)
}

// Find returns the entries that an id names, latest first: a client may have sent the same id several times.
func (s *Store[E]) Find(id string) []E { return s.list(func(e E) bool { return e.Is(id) }) }

// Latest returns the latest entries, latest first.
func (s *Store[E]) Latest() []E { return s.list(func(E) bool { return true }) }

func (s *Store[E]) list(fits func(E) bool) []E {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []kept[E]
	for _, q := range []*queue[E]{&s.ordinary, &s.notable} {
		for _, k := range q.entries {
			if fits(k.entry) {
				found = append(found, k)
			}
		}
	}
	slices.SortFunc(found, func(a, b kept[E]) int { return int(b.number - a.number) })
	all := make([]E, min(len(found), maxShown))
	for i := range all {
		all[i] = found[i].entry
	}
	return all
}

// Register adds the pages of the store to an admin port.
func (s *Store[E]) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET "+Path, func(w http.ResponseWriter, _ *http.Request) { write(w, s.Latest()) })
	mux.HandleFunc("GET "+Path+"/{id}", func(w http.ResponseWriter, r *http.Request) { write(w, s.Find(r.PathValue("id"))) })
}

// write answers with entries; none is an empty list.
func write[E Entry](w http.ResponseWriter, entries []E) {
	if entries == nil {
		entries = []E{}
	}
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(entries); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
