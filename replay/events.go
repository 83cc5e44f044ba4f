package replay

import (
	"encoding/binary"
	"math"

	"github.com/tandem-serving/tandem/epp/kvfeed"
	"github.com/tandem-serving/tandem/replay/engine"
)

// listener is a plugin that goes by what engines tell about their KV caches.
type listener interface {
	Events() (producer string, feed *kvfeed.Feed)
}

// events are what an engine tells about its prefix cache, in vLLM's form: one message for all that changes at a moment. A block is a part of
// prompts as the trace has them, because that is what the modelled engine shares.
type events struct {
	batch  []byte
	count  int
	number uint64 // of the next message
}

// CacheChanged implements engine.CacheListener.
func (n *node) CacheChanged(c engine.CacheChange) {
	if !n.tells() {
		return
	}
	medium, kind, members := "GPU", "BlockStored", byte(3)
	if c.Host {
		medium = "CPU"
	}
	switch {
	case c.Removed:
		kind = "BlockRemoved"
	case !c.Host: // of what is offloaded, vLLM tells the names alone
		members = 6
	}
	b := append(n.events.batch, 0x80|members) // a map
	b = appendText(appendText(b, "type"), kind)
	b = appendText(appendText(b, "medium"), medium)
	b = appendName(append(appendText(b, "block_hashes"), 0x91), c.ID) // an array of 1
	if members > 3 {
		b = n.described(b, c)
	}
	n.events.batch = b
	n.tell()
}

// described appends what is told of a part of prompts that enters the prefix cache.
func (n *node) described(b []byte, c engine.CacheChange) []byte {
	b = appendText(b, "parent_block_hash")
	if c.First {
		b = append(b, 0xc0) // nil
	} else {
		b = appendName(b, c.Before)
	}
	each := n.world.trace.BlockTokens
	b = binary.BigEndian.AppendUint32(append(appendText(b, "token_ids"), 0xdd), uint32(each))
	n.world.tokens = appendPart(n.world.tokens[:0], c.ID, each)
	for _, token := range n.world.tokens {
		b = binary.BigEndian.AppendUint32(append(b, 0xce), token)
	}
	return binary.BigEndian.AppendUint32(append(appendText(b, "block_size"), 0xce), uint32(each))
}

// tells reports whether a picker listens.
func (n *node) tells() bool { return len(n.world.pickers) > 0 && len(n.world.pickers[0].feeds) > 0 }

// tell counts an event. All of one moment are in one message.
func (n *node) tell() {
	if n.events.count++; n.events.count == 1 {
		n.world.clock.after(0, n.publish)
	}
}

// publish sends what has changed at this moment to all pickers that listen.
func (n *node) publish() {
	w, e := n.world, &n.events
	at := float64(w.clock.Now().UnixMicro()) / 1e6
	b := binary.BigEndian.AppendUint64([]byte{0x93, 0xcb}, math.Float64bits(at)) // an array of 3, a float
	b = append(binary.BigEndian.AppendUint32(append(b, 0xdd), uint32(e.count)), e.batch...)
	b = append(b, 0) // the rank
	number := binary.BigEndian.AppendUint64(nil, e.number)
	e.batch, e.count = e.batch[:0], 0
	e.number++
	w.clock.after(w.options.Events, func() {
		for _, p := range w.pickers {
			for _, feed := range p.feeds {
				if err := feed.Deliver(p.loads.pages[n.slot].endpoint, 0, number, b); err != nil {
					panic(err) // the message is wrong, and with it the replay
				}
			}
		}
	})
}

// appendText appends a text of at most 31 bytes in MessagePack.
func appendText(b []byte, text string) []byte {
	return append(append(b, 0xa0|byte(len(text))), text...)
}

// appendName appends the name of a block.
func appendName(b []byte, id uint64) []byte {
	return binary.BigEndian.AppendUint64(append(b, 0xcf), id)
}
