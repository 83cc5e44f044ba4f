package handoff

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

func TestOtherList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two, three := pd.Target{Host: "10.0.0.1", Port: 8000}, pd.Target{Host: "10.0.0.2", Port: 8000}, pd.Target{Host: "10.0.0.3", Port: 8000}
		exist, failure, asked := []pd.Target{one, two}, error(nil), 0
		l := &otherList{Others: Others{
			Find: func(ctx context.Context) ([]pd.Target, error) {
				asked++
				if ctx.Err() != nil {
					t.Error("the list ends with one client")
				}
				return exist, failure
			},
			Allowed: func(at pd.Target) bool { return at != three },
			Own:     func(port uint16) bool { return port == 8000 || port == 8001 },
		}}
		left, leave := context.WithCancel(t.Context())
		leave()
		must := func(when, self string, wantAsked int, want ...pd.Target) {
			t.Helper()
			got, err := l.list(left, self)
			slices.SortFunc(got, func(a, b pd.Target) int { return int(a.Host[len(a.Host)-1]) - int(b.Host[len(b.Host)-1]) })
			if !slices.Equal(got, want) || (err == nil) != (failure == nil) || asked != wantAsked {
				t.Errorf("%s: %v, %v, asked %d times; want %v, asked %d times", when, got, err, asked, want, wantAsked)
			}
		}
		must("all", "10.0.0.9:8000", 1, one, two)
		must("at once, for the first pod", "10.0.0.1:8000", 1, two)
		must("for its other rank", "10.0.0.1:8001", 1, two)
		must("for a pod that does not know its port", "10.0.0.1:"+strconv.Itoa(9), 1, one, two)
		must("for one that does not know its address", "", 1, one, two)
		time.Sleep(othersTrust)
		exist = []pd.Target{two, three}
		must("a second later, one that is not allowed", "10.0.0.9:8000", 2, two)
		time.Sleep(othersTrust)
		failure = errors.New("no such host")
		must("the last list where there is none", "10.0.0.9:8000", 3, two)
	})
	if got, err := (&otherList{}).list(t.Context(), ""); got != nil || err != nil {
		t.Errorf("without a source: %v, %v", got, err)
	}
}
