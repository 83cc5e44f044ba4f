package sglang

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
)

// Room is the number by which the two legs of a request find each other. SGLang knows it as an integer of 64 bits without a sign, and
// does not check that it is one.
type Room struct {
	negative bool
	number   uint64
}

// NewRoom returns the room of a number that fits into 64 bits, signed or not.
func NewRoom(n *big.Int) (Room, bool) {
	abs := new(big.Int).Abs(n)
	negative := n.Sign() < 0
	if !abs.IsUint64() || negative && abs.Uint64() > math.MaxInt64 {
		return Room{}, false
	}
	return Room{negative, abs.Uint64()}, true
}

// Add returns the room of a later element of a batch whose first element is in this one.
func (r Room) Add(i int) Room {
	n, _ := new(big.Int).SetString(r.String(), 10)
	sum, _ := NewRoom(n.Add(n, big.NewInt(int64(i))))
	return sum
}

// String returns the number.
func (r Room) String() string {
	if r.negative {
		return "-" + strconv.FormatUint(r.number, 10)
	}
	return strconv.FormatUint(r.number, 10)
}

// MarshalText implements encoding.TextMarshaler.
func (r Room) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *Room) UnmarshalText(text []byte) error {
	n, ok := new(big.Int).SetString(string(text), 10)
	if ok {
		*r, ok = NewRoom(n)
	}
	if !ok {
		return fmt.Errorf("reading the room %q", text)
	}
	return nil
}

// rank returns the rank that a bootstrap room stands for among so many.
func (r Room) rank(ranks int) int { return int(r.number % uint64(ranks)) }

// mute reports whether a decode leg of this bootstrap room never gets an answer: SGLang takes 0 for a bootstrap room that is not there.
func (r Room) mute() bool { return r == Room{} }
