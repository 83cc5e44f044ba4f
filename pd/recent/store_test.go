package recent_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd/recent"
)

// entry is a made-up entry.
type entry struct {
	id   string
	size int
}

func (e entry) Is(id string) bool            { return e.id == id }
func (e entry) Size() int                    { return e.size }
func (e entry) MarshalJSON() ([]byte, error) { return json.Marshal(e.id) }

// latest returns the ids in a store, latest first.
func latest(s *recent.Store[entry]) (ids []string) {
	for _, e := range s.Latest() {
		ids = append(ids, e.id)
	}
	return ids
}

func TestStoreIsBounded(t *testing.T) {
	for _, c := range []struct {
		name         string
		count, bytes int
		added        string // ids; upper case ones are notable and take 10 bytes each, as the others do
		want         string
	}{
		{"nothing is kept", 0, 1000, "ab", ""},
		{"all fit", 3, 1000, "abc", "cba"},
		{"the oldest goes by count", 3, 1000, "abcd", "dcb"},
		{"the oldest go by bytes", 10, 25, "abcd", "dc"},
		{"one that is too large is kept alone", 10, 5, "ab", "b"},
		{"ordinary ones do not push out notable ones", 2, 1000, "Aabcd", "dcA"},
		{"nor the other way round", 2, 1000, "aABCD", "DCa"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := recent.New[entry](c.count, c.bytes)
			for _, id := range strings.Split(c.added, "") {
				s.Add(entry{id, 10}, id == strings.ToUpper(id))
			}
			if got := strings.Join(latest(s), ""); got != c.want {
				t.Errorf("kept %q, want %q", got, c.want)
			}
		})
	}
}

func TestPages(t *testing.T) {
	s := recent.New[entry](1000, 1<<20)
	mux := http.NewServeMux()
	s.Register(mux)
	ask := func(path string) (ids []string) {
		t.Helper()
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if err := json.Unmarshal(w.Body.Bytes(), &ids); err != nil || w.Code != http.StatusOK || ids == nil {
			t.Errorf("%s: %d %s (%v)", path, w.Code, w.Body, err)
		}
		return ids
	}
	if got := ask(recent.Path); len(got) != 0 {
		t.Errorf("an empty store shows %q", got)
	}
	for i := range 300 {
		s.Add(entry{fmt.Sprint(i % 200), 10}, i == 7)
	}
	if got := ask(recent.Path); len(got) != 100 || got[0] != "99" || got[99] != "0" {
		t.Errorf("the latest are %q", got)
	}
	if got := ask(recent.Path + "/7"); !slices.Equal(got, []string{"7", "7"}) {
		t.Errorf("of one id: %q", got)
	}
	if got := ask(recent.Path + "/unknown"); len(got) != 0 {
		t.Errorf("of an unknown id: %q", got)
	}
}
