package sim

import (
	"encoding/binary"
	"encoding/hex"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/kv"
)

// hashOf returns a hash that KV events call by a name.
func hashOf(name uint64) (h kv.Hash) {
	binary.BigEndian.PutUint64(h[len(h)-8:], name)
	return h
}

// count returns n tokens from first on, each one more than the one before.
func count(first, n int) []int {
	tokens := make([]int, n)
	for i := range tokens {
		tokens[i] = first + i
	}
	return tokens
}

// What the simulated engine publishes is byte for byte what vLLM 0.32.0 did, without the times. The engine that removed a block
// had digests for names, here shortened to the integers that others have.
func TestEventsAreThoseOfTheRealEngine(t *testing.T) {
	const timeBytes = 10 // with the header of the batch
	for _, test := range []struct {
		name string
		when func(e *events)
		want string
	}{
		{"a block after another one", func(e *events) {
			e.stored(&core.Sequence{Salt: "", Tokens: count(268, 64)}, 1, []kv.Hash{hashOf(0xb0a138d72097ab61), hashOf(0x31b80baccdf19a96)})
		}, "918ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf31b80baccdf19a96b1706172656e745f626c6f636b5f68617368cfb0a138d72097ab61a9746f6b656e5f696473dc0020cd012ccd012dcd012ecd012fcd0130cd0131cd0132cd0133cd0134cd0135cd0136cd0137cd0138cd0139cd013acd013bcd013ccd013dcd013ecd013fcd0140cd0141cd0142cd0143cd0144cd0145cd0146cd0147cd0148cd0149cd014acd014baa626c6f636b5f73697a6520a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797391c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e00"},
		{"the first blocks, with a salt", func(e *events) {
			e.stored(&core.Sequence{Salt: "salt-1", Tokens: count(100, 64)}, 0, []kv.Hash{hashOf(0xdf8f515615110a7e), hashOf(0x625f794964b401e7)})
		}, "918ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cfdf8f515615110a7ecf625f794964b401e7b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473dc00406465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7fcc80cc81cc82cc83cc84cc85cc86cc87cc88cc89cc8acc8bcc8ccc8dcc8ecc8fcc90cc91cc92cc93cc94cc95cc96cc97cc98cc99cc9acc9bcc9ccc9dcc9ecc9fcca0cca1cca2cca3aa626c6f636b5f73697a6520a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b6579739291a673616c742d31c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e00"},
		{"a block is removed", func(e *events) {
			e.removed(hashOf(0x7444339caeef297b))
		}, "9184a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cf7444339caeef297ba66d656469756da3475055a967726f75705f6964780000"},
		{"a block is copied to the host's memory", func(e *events) {
			e.offloaded(hashOf(0x974beec95397b02a))
		}, "9189a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf974beec95397b02ab1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f69647390aa626c6f636b5f73697a6500a76c6f72615f6964c0a66d656469756da3435055a96c6f72615f6e616d65c0a967726f75705f6964780000"},
		{"a block is dropped from the host's memory", func(e *events) {
			e.dropped(hashOf(0x7444339caeef297b))
		}, "9184a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cf7444339caeef297ba66d656469756da3435055a967726f75705f6964780000"},
		{"all is cleared", (*events).cleared, "9181a474797065b0" + hex.EncodeToString([]byte("AllBlocksCleared")) + "00"},
	} {
		e := &events{blockSize: 32}
		test.when(e)
		e.flush(time.Now())
		if got := hex.EncodeToString(e.kept[0][timeBytes:]); got != test.want {
			t.Errorf("%s:\n%s, want\n%s", test.name, got, test.want)
		}
	}
}

func TestEventsAreKept(t *testing.T) {
	e := &events{topic: []byte("kv@here"), blockSize: 32}
	for i := range uint64(KeptMessages + 5) {
		e.removed(hashOf(i))
		e.flush(time.Now())
	}
	e.flush(time.Now())                            // nothing happened in this step
	for start, want := range map[uint64][2]uint64{ // first number, and how many
		0:                {5, KeptMessages},
		5:                {5, KeptMessages},
		KeptMessages + 3: {KeptMessages + 3, 2},
		KeptMessages + 9: {0, 0},
		endOfReplay:      {0, 0},
	} {
		var numbers []uint64
		err := e.replay([][]byte{nil, binary.BigEndian.AppendUint64(nil, start)}, func(parts ...[]byte) error {
			numbers = append(numbers, binary.BigEndian.Uint64(parts[2]))
			return nil
		})
		n := len(numbers) - 1
		if err != nil || uint64(n) != want[1] || numbers[n] != endOfReplay || n > 0 && numbers[0] != want[0] {
			t.Errorf("a replay from %d has %d messages, %v", start, n, err)
		}
	}
}
