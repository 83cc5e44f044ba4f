package boot

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

var (
	durationType    = reflect.TypeFor[time.Duration]()
	unmarshalerType = reflect.TypeFor[encoding.TextUnmarshaler]()
	marshalerType   = reflect.TypeFor[encoding.TextMarshaler]()
)

// readsText reports whether values of type t parse themselves.
func readsText(t reflect.Type) bool { return reflect.PointerTo(t).Implements(unmarshalerType) }

// supported reports whether a flag may have this type: text, number, switch, duration, a type that reads and writes itself
// as text, or a list of those.
func supported(t reflect.Type) bool {
	if readsText(t) {
		return t.Implements(marshalerType)
	}
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int64, reflect.Float64:
		return true
	case reflect.Slice:
		return t.Elem().Kind() != reflect.Slice && supported(t.Elem())
	default:
		return false
	}
}

// isList reports whether the type takes several values.
func isList(t reflect.Type) bool { return t.Kind() == reflect.Slice && !readsText(t) }

// defaultArg returns the name of the value on the help page.
func defaultArg(t reflect.Type) string {
	switch {
	case isList(t):
		return defaultArg(t.Elem()) + "[,…]"
	case t == durationType:
		return "DURATION"
	case readsText(t) || t.Kind() == reflect.String:
		return "TEXT"
	case t.Kind() == reflect.Bool:
		return ""
	default:
		return "NUMBER"
	}
}

// parseAll sets v from the given texts: the last one for a single value, all
// of them, each comma separated, for a list.
func (o *option) parseAll(texts []string) error {
	if !isList(o.kind) {
		return o.parseOne(o.value, texts[len(texts)-1])
	}
	list := reflect.MakeSlice(o.kind, 0, len(texts))
	for _, text := range texts {
		for _, part := range splitList(text) {
			item := reflect.New(o.kind.Elem()).Elem()
			if err := o.parseOne(item, part); err != nil {
				return err
			}
			list = reflect.Append(list, item)
		}
	}
	o.value.Set(list)
	return nil
}

func (o *option) parseOne(v reflect.Value, text string) error {
	if len(o.enum) > 0 && !slices.Contains(o.enum, text) {
		return fmt.Errorf("%q is not one of %s", text, strings.Join(o.enum, ", "))
	}
	return parseValue(v, text)
}

// parseValue sets v from text. The errors are parts of a sentence for users.
func parseValue(v reflect.Value, text string) error {
	if readsText(v.Type()) {
		return v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text))
	}
	switch {
	case v.Type() == durationType:
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("%q is not a duration like 500ms, 30s or 1m30s", text)
		}
		v.SetInt(int64(d))
	case v.Kind() == reflect.String:
		v.SetString(text)
	case v.Kind() == reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%q is not true or false", text)
		}
		v.SetBool(b)
	case v.Kind() == reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("%q is not a number", text)
		}
		v.SetFloat(f)
	default:
		return parseInt(v, text)
	}
	return nil
}

func parseInt(v reflect.Value, text string) error {
	i, err := strconv.ParseInt(text, 10, 64)
	if errors.Is(err, strconv.ErrRange) || err == nil && v.OverflowInt(i) {
		return fmt.Errorf("%s is too large a number", text)
	}
	if err != nil {
		return fmt.Errorf("%q is not a whole number", text)
	}
	v.SetInt(i)
	return nil
}

// formatValue returns the text that parseValue would read as v.
func formatValue(v reflect.Value) string {
	if isList(v.Type()) {
		items := make([]string, v.Len())
		for i := range items {
			items[i] = formatValue(v.Index(i))
		}
		return strings.Join(items, ",")
	}
	if m, ok := v.Interface().(encoding.TextMarshaler); ok {
		text, err := m.MarshalText()
		if err != nil {
			return err.Error()
		}
		return string(text)
	}
	if d, ok := v.Interface().(time.Duration); ok {
		return formatDuration(d)
	}
	return fmt.Sprint(v.Interface())
}

// formatDuration leaves out the zeros that time.Duration ends with: 1m, not
// 1m0s.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Bytes is a size: a number, with an optional unit of 1024s (KiB, MiB, GiB).
type Bytes int64

var byteUnits = []struct {
	suffix string
	factor int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// UnmarshalText reads sizes like 65536 and 64MiB.
func (b *Bytes) UnmarshalText(text []byte) error {
	digits, factor := string(text), int64(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(digits, u.suffix); ok {
			digits, factor = rest, u.factor
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > (1<<62)/factor {
		return fmt.Errorf("%q is not a size like 65536, 512KiB or 64MiB", text)
	}
	*b = Bytes(n * factor)
	return nil
}

// MarshalText writes the size in the largest unit that divides it.
func (b Bytes) MarshalText() ([]byte, error) {
	for _, u := range byteUnits {
		if b != 0 && int64(b)%u.factor == 0 {
			return fmt.Appendf(nil, "%d%s", int64(b)/u.factor, u.suffix), nil
		}
	}
	return strconv.AppendInt(nil, int64(b), 10), nil
}

// Secret is text that is never shown: not in the effective configuration, on the help page, or in a log.
type Secret string

// masked stands for a secret that is set.
const masked = "(set)"

// UnmarshalText stores the secret. It refuses the mask, so that a printed configuration cannot be mistaken for a complete
// one.
func (s *Secret) UnmarshalText(text []byte) error {
	if string(text) == masked {
		return errors.New("is only a mask; put the secret itself here")
	}
	*s = Secret(text)
	return nil
}

// MarshalText returns the mask if the secret is set, else "".
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// String returns the mask if the secret is set, else "".
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return masked
}
