package workload

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// maxTokens bounds a length: no model has a longer context.
const maxTokens = 10_000_000

// Lengths is a number of tokens, or a range of which every number is equally likely. Both ends are included.
type Lengths struct{ Least, Most int }

// UnmarshalText reads a number such as 512, or a range such as 256-1024.
func (l *Lengths) UnmarshalText(text []byte) error {
	least, most, ranged := strings.Cut(string(text), "-")
	if !ranged {
		most = least
	}
	var ends [2]int
	for i, s := range []string{least, most} {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 1 || n > maxTokens {
			return fmt.Errorf("%q is not a number of tokens such as 512, or a range such as 256-1024", text)
		}
		ends[i] = n
	}
	if ends[0] > ends[1] {
		return fmt.Errorf("%q ends before it begins", text)
	}
	*l = Lengths{ends[0], ends[1]}
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (l Lengths) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// String returns the number or the range as text; "" if there is none.
func (l Lengths) String() string {
	if l == (Lengths{}) {
		return ""
	}
	if l.Least == l.Most {
		return strconv.Itoa(l.Least)
	}
	return fmt.Sprintf("%d-%d", l.Least, l.Most)
}

func (l Lengths) draw(r *rand.Rand) int { return l.Least + r.IntN(l.Most-l.Least+1) }
