package madeup

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
)

// Exchange is where engines of the made-up protocols leave the simulator's hand-offs for each other, by number and by ticket.
type Exchange struct {
	mu   sync.Mutex // guards what follows
	left map[string]*deposit
}

// deposit is one hand-off. Exchange.mu guards it.
type deposit struct {
	there   chan struct{}   // closed when params are there
	params  json.RawMessage // kv_transfer_params; nil = not there yet
	taken   bool            // a decode leg has it
	over    bool            // decode has read it, or it was released
	release func(params json.RawMessage) (status int)
}

// What giveUp returns besides the status of a release.
const (
	notReleased = 0  // the hand-off is over, or it will be released later
	broken      = -1 // the engine broke off before it had answered
)

// NewExchange makes an empty exchange.
func NewExchange() *Exchange { return &Exchange{left: map[string]*deposit{}} }

// at returns the deposit of a name. mu is held.
func (x *Exchange) at(name string) *deposit {
	if x.left[name] == nil {
		x.left[name] = &deposit{there: make(chan struct{})}
	}
	return x.left[name]
}

// leave leaves a hand-off.
func (x *Exchange) leave(name string, params json.RawMessage) {
	x.change(name, func(d *deposit) {
		if d.params == nil {
			d.params = params
			close(d.there)
		}
	})
}

// take waits for a hand-off, and takes it for decode.
func (x *Exchange) take(ctx context.Context, name string) (json.RawMessage, error) {
	x.mu.Lock()
	d := x.at(name)
	x.mu.Unlock()
	select {
	case <-d.there:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	d.taken = true
	return d.params, nil
}

// end notes that the leg which took a hand-off has ended, and whether it has read it.
func (x *Exchange) end(name string, read bool) {
	x.change(name, func(d *deposit) { d.taken, d.over = false, d.over || read })
}

// giveUp has a hand-off released that decode does not read: now, or as soon as it is there and not taken.
func (x *Exchange) giveUp(name string, release func(params json.RawMessage) (status int)) (status int) {
	return x.change(name, func(d *deposit) { d.release = release })
}

// change changes a deposit, and releases it if that is due.
func (x *Exchange) change(name string, f func(d *deposit)) (status int) {
	x.mu.Lock()
	d := x.at(name)
	f(d)
	release := d.release
	due := d.params != nil && !d.taken && !d.over && release != nil
	d.over = d.over || due
	x.mu.Unlock()
	if !due {
		return notReleased
	}
	status = release(d.params)
	x.mu.Lock()
	defer x.mu.Unlock()
	d.over = noted(status)
	return status
}

// noted reports whether an engine that answers a release with status has noted which hand-off is meant: it refuses the request
// after that.
func noted(status int) bool { return status == http.StatusNotFound || status == http.StatusBadRequest }
