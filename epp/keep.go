package epp

import (
	"errors"
	"io"
	"sync"
)

// Keep holds what outlives a reload of the configuration, such as a prefix index that took hours to fill. A plugin asks for a
// value under a key when it is built, and gets the value that a plugin of an earlier configuration made under this key. The
// zero Keep is empty.
type Keep struct {
	Clock Clock // by which plugins tell the time; nil = SystemClock
	// Offline says that the endpoints are not real, as in replays: plugins must not connect to them, nor let them connect.
	Offline bool

	mu    sync.Mutex
	kept  map[string]any
	asked map[string]bool // for since the last Settle
}

// Kept returns the value under the key, which create makes if there is none. The key must name everything that create depends
// on. A value that is an io.Closer is closed when no plugin of a configuration in use has asked for it: see Settle.
func Kept[T any](k *Keep, key string, create func() T) T {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept == nil {
		k.kept, k.asked = make(map[string]any), make(map[string]bool)
	}
	k.asked[key] = true
	if v, ok := k.kept[key].(T); ok {
		return v
	}
	v := create()
	k.kept[key] = v
	return v
}

// Settle closes and forgets the values that can be closed and were not asked for since Settle was called last: a configuration that has
// replaced another one does not use them. Others are kept, because a later configuration may.
func (k *Keep) Settle() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	err := k.close(func(key string) bool { return !k.asked[key] })
	clear(k.asked)
	return err
}

// Close closes all values that can be closed, and forgets them.
func (k *Keep) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.close(func(string) bool { return true })
}

func (k *Keep) close(unused func(key string) bool) error {
	var problems []error
	for key, v := range k.kept {
		if c, ok := v.(io.Closer); ok && unused(key) {
			problems = append(problems, c.Close())
			delete(k.kept, key)
		}
	}
	return errors.Join(problems...)
}

// EndpointJoined implements EndpointObserver: it calls all kept values that are one.
func (k *Keep) EndpointJoined(e *Endpoint) {
	k.each(func(o EndpointObserver) { o.EndpointJoined(e) })
}

// EndpointLeft implements EndpointObserver: it calls all kept values that are one, whether or not a plugin of the current
// configuration uses them. A value that is unused now may be used later, when the slot belongs to another endpoint.
func (k *Keep) EndpointLeft(e *Endpoint) {
	k.each(func(o EndpointObserver) { o.EndpointLeft(e) })
}

func (k *Keep) each(tell func(EndpointObserver)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, v := range k.kept {
		if o, ok := v.(EndpointObserver); ok {
			tell(o)
		}
	}
}
