package handoff

import (
	"context"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// Others finds decode pods that may go on with streams. The picker names pods when a request begins; a long stream may outlive them, and
// pods that have come meanwhile are not among them.
type Others struct {
	// Find lists the pods that exist now. nil: only those that the picker has named go on.
	Find func(context.Context) ([]pd.Target, error)
	// Allowed reports whether a pod may get legs.
	Allowed func(pd.Target) bool
	// Own reports whether a port is one of the data ports of this sidecar, and so of all.
	Own func(port uint16) bool
}

const (
	// othersTrust is for how long a list of pods is taken for up to date. When an engine dies, all of its streams ask at once.
	othersTrust = time.Second
	// othersTimeout bounds the wait for a list. Meanwhile the client gets nothing.
	othersTimeout = time.Second
	// maxFound is how many of the found pods one stream tries: one may have ended since, and a prompt that kills engines must not reach
	// all of them.
	maxFound = 2
)

// otherList is the last list of Others. It is safe for concurrent use.
type otherList struct {
	Others

	mu    sync.Mutex // guards the rest; held while pods are looked for, so that all streams of a dead engine wait for one answer
	found []pd.Target
	until time.Time // when it is no longer up to date
}

// list returns the pods that may go on with a stream, but for the one at an address (host:port) and other ranks of it, in random order, so
// that the streams of an engine spread. If the pods cannot be listed, err says why, and they are those of the last list.
func (l *otherList) list(ctx context.Context, self string) (pods []pd.Target, err error) {
	if l.Find == nil {
		return nil, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); !now.Before(l.until) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), othersTimeout) // the list is for others too
		defer cancel()
		found, failure := l.Find(ctx)
		if err = failure; err == nil {
			l.found = found
		}
		l.until = now.Add(othersTrust)
	}
	for _, t := range l.found {
		if t.String() != self && !l.ownRank(t, self) && l.Allowed(t) {
			pods = append(pods, t)
		}
	}
	rand.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	return pods, err
}

// ownRank reports whether a pod is a rank of the pod at an address.
func (l *otherList) ownRank(t pd.Target, self string) bool {
	host, port, err := net.SplitHostPort(self)
	if err != nil || t.Host != host {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && l.Own(uint16(n)) && l.Own(t.Port)
}
