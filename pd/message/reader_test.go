package message_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tandem-serving/tandem/pd/message"
)

// fields are of a made-up message: a number, a text, a list of numbers, and a message that has the same text and list.
var fields = []message.Field{
	{Number: 1, Kind: message.Number, Want: 1},
	{Number: 2, Kind: message.Bytes, Want: 2},
	{Number: 3, Kind: message.Number, Want: 3},
	{Number: 4, Kind: message.Nested, Want: 4, Fields: []message.Field{
		{Number: 2, Kind: message.Bytes, Want: 5},
		{Number: 3, Kind: message.Number, Want: 6},
	}},
}

// journal is a sink that writes down what it receives. Pieces are joined.
type journal struct {
	strings.Builder
	fails error
}

func (j *journal) Begin(want int) error { fmt.Fprintf(j, "%d{", want); return j.fails }
func (j *journal) Number(want int, v uint64) error {
	fmt.Fprintf(j, "%d=%d ", want, v)
	return j.fails
}
func (j *journal) Piece(_ int, piece []byte, last bool) error {
	if j.Write(piece); last {
		j.WriteString("} ")
	}
	return j.fails
}

// frame returns messages as the body of a call.
func frame(messages ...[]byte) (body []byte) {
	for _, m := range messages {
		body = append(body, 0)
		body = binary.BigEndian.AppendUint32(body, uint32(len(m)))
		body = append(body, m...)
	}
	return body
}

func text(number protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), value)
}

func number(number protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), v)
}

func packed(values ...uint64) []byte {
	var list []byte
	for _, v := range values {
		list = protowire.AppendVarint(list, v)
	}
	return text(3, string(list))
}

func join(parts ...[]byte) (all []byte) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// read reads a body in chunks of a size.
func read(body []byte, limit int64, size int) (j *journal, messages int, err error) {
	var r message.Reader
	j = new(journal)
	r.Reset(fields, limit, j)
	for len(body) > 0 {
		n := min(size, len(body))
		if err = r.Write(body[:n]); err != nil {
			return j, r.Messages(), err
		}
		body = body[n:]
	}
	return j, r.Messages(), r.Close()
}

func TestReader(t *testing.T) {
	fixed := join(protowire.AppendFixed32(protowire.AppendTag(nil, 9, protowire.Fixed32Type), 1), protowire.AppendFixed64(protowire.AppendTag(nil, 9, protowire.Fixed64Type), 1))
	inner := join(packed(7, 300), text(2, "in"))
	for _, c := range []struct {
		name string
		body []byte
		want string
		err  error
	}{
		{"nothing", nil, "", nil},
		{"an empty message", frame(nil), "", nil},
		{"two messages", frame(number(1, 1), number(1, 2)), "1=1 1=2 ", nil},
		{"numbers and a text", frame(join(number(1, 1<<40), text(2, "hello"), text(2, ""))), "1=1099511627776 2{hello} 2{} ", nil},
		{"a packed list", frame(packed(1, 2, 1<<31)), "3=1 3=2 3=2147483648 ", nil},
		{"a list of single numbers", frame(join(number(3, 1), number(3, 2))), "3=1 3=2 ", nil},
		{"an empty list", frame(join(packed(), number(1, 5))), "1=5 ", nil},
		{"a nested message at the end", frame(text(4, string(inner))), "4{6=7 6=300 5{in} ", nil},
		{"a nested message before others", frame(join(text(4, string(inner)), number(1, 2))), "4{6=7 6=300 5{in} 1=2 ", nil},
		{"an empty nested message", frame(join(text(4, ""), number(1, 2))), "4{1=2 ", nil},
		{"fields that are not known", frame(join(fixed, text(8, "skipped"), text(8, ""), number(8, 3), number(1, 9))), "1=9 ", nil},
		{"a field of another type", frame(join(number(2, 3), number(4, 3))), "", nil},

		{"compressed", append([]byte{1}, frame(nil)[1:]...), "", message.ErrCompressed},
		{"an unknown flag", append([]byte{2}, frame(nil)[1:]...), "", message.ErrSyntax},
		{"longer than allowed", frame(text(2, strings.Repeat("x", 2000))), "", message.ErrTooLarge},
		{"cut in the frame's header", frame(nil)[:3], "", message.ErrTruncated},
		{"cut in the message", frame(text(2, "hello"))[:9], "2{he", message.ErrTruncated},
		{"a number that goes on beyond its message", append(frame([]byte{8, 0x80}), 0), "", message.ErrSyntax},
		{"a number beyond 64 bits", frame([]byte{8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2}), "", message.ErrSyntax},
		{"a text beyond its message", frame([]byte{18, 9, 'x'}), "", message.ErrSyntax},
		{"a nested message beyond its message", frame([]byte{34, 9, 18, 0}), "", message.ErrSyntax},
		{"a fixed number beyond its message", frame([]byte{77, 1}), "", message.ErrSyntax},
		{"a list that ends within a number", frame(join([]byte{26, 1, 0x80}, number(1, 1))), "", message.ErrSyntax},
		{"a group", frame([]byte{11, 12}), "", message.ErrSyntax},
		{"a field numbered 0", frame([]byte{0, 0}), "", message.ErrSyntax},
	} {
		t.Run(c.name, func(t *testing.T) {
			for size := 1; size <= max(1, len(c.body)); size++ {
				got, messages, err := read(c.body, 1000, size)
				if got.String() != c.want || !errors.Is(err, c.err) {
					t.Fatalf("in chunks of %d: %q, %v; want %q, %v", size, got, err, c.want, c.err)
				}
				if want := strings.Count(c.name, "two"); err == nil && want > 0 && messages != 2 {
					t.Errorf("%d messages", messages)
				}
			}
		})
	}
}

// TestSinkFails: an error of the sink is returned at once, and again.
func TestSinkFails(t *testing.T) {
	want := errors.New("enough")
	for name, body := range map[string][]byte{"a number": number(1, 1), "a list": packed(1, 2), "a text": text(2, "a"), "an empty text": text(2, ""), "a message": text(4, "")} {
		var r message.Reader
		r.Reset(fields, 0, &journal{fails: want})
		if err := r.Write(frame(body)); !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
		if err := r.Close(); !errors.Is(err, want) {
			t.Errorf("%s: %v at the end", name, err)
		}
	}
}

// Whatever the chunks, the same is read, and what protobuf's own parser refuses is refused.
func FuzzReader(f *testing.F) {
	f.Add(frame(join(number(1, 300), text(2, "hello"), packed(1, 300), text(4, string(packed(1))))), uint8(3))
	f.Add([]byte{0, 0, 0, 0, 2, 8, 0x80, 0}, uint8(1))
	f.Fuzz(func(t *testing.T, body []byte, size uint8) {
		whole, messages, err := read(body, 0, max(1, len(body)))
		parts, more, partsErr := read(body, 0, 1+int(size))
		if whole.String() != parts.String() || messages != more || !errors.Is(partsErr, err) {
			t.Fatalf("whole: %q, %d, %v\nparts: %q, %d, %v", whole, messages, err, parts, more, partsErr)
		}
		if err != nil || messages != 1 {
			return
		}
		for rest := body[5:]; len(rest) > 0; {
			_, _, n := protowire.ConsumeField(rest)
			if n < 0 {
				t.Fatalf("read %q, which protobuf refuses: %v", body, protowire.ParseError(n))
			}
			rest = rest[n:]
		}
	})
}

func BenchmarkReader(b *testing.B) {
	ids := make([]uint64, 100_000)
	for i := range ids {
		ids[i] = uint64(i) * 7919 % 151936
	}
	for name, body := range map[string][]byte{"ids-100000": frame(packed(ids...)), "text-512K": frame(text(2, strings.Repeat("x", 512<<10)))} {
		b.Run(name, func(b *testing.B) {
			var r message.Reader
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				r.Reset(fields, 0, count{})
				for at := 0; at < len(body); at += 16 << 10 {
					if err := r.Write(body[at:min(at+16<<10, len(body))]); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// count is a sink that keeps nothing.
type count struct{}

func (count) Begin(int) error               { return nil }
func (count) Number(int, uint64) error      { return nil }
func (count) Piece(int, []byte, bool) error { return nil }
