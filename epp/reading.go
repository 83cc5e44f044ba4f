package epp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
)

// Reading is the value of one signal, in printable and JSON form.
type Reading struct {
	Name  string
	Value *float64 // nil: unknown
}

// Readings are the values of all signals of an endpoint. In JSON they are an object by name, with null for unknown values.
type Readings []Reading

// Readings returns the values of all declared signals, in the order of their declaration. Signals that no Producer has computed are left out.
func (c *Candidate) Readings() Readings {
	all := make(Readings, 0, len(declared))
	for i := range declared {
		one := Reading{Name: declared[i].Name}
		v, ok := c.Value(Signal(i))
		if ok && !math.IsNaN(v) && !math.IsInf(v, 0) { // JSON has neither
			one.Value = &v
		}
		if ok || declared[i].Kind != ComputedSignal {
			all = append(all, one)
		}
	}
	return all
}

// Title returns the heading of the reading's column in a table; "" if tables do not show the signal. A signal that another
// version of the picker declared has its name as heading.
func (r *Reading) Title() string {
	if s, ok := SignalNamed(r.Name); ok {
		return declared[s].Title
	}
	return r.Name
}

// Text returns the formatted value, or unknown if there is none.
func (r *Reading) Text(unknown string) string {
	if r.Value == nil {
		return unknown
	}
	s, ok := SignalNamed(r.Name)
	if !ok {
		return Unit(0).Format(*r.Value)
	}
	return declared[s].Unit.Format(*r.Value)
}

// ForTables returns the readings that have a Title.
func (r Readings) ForTables() Readings {
	var titled Readings
	for i := range r {
		if r[i].Title() != "" {
			titled = append(titled, r[i])
		}
	}
	return titled
}

// Of returns the reading with a name. Its value is unknown if there is none.
func (r Readings) Of(name string) Reading {
	for _, reading := range r {
		if reading.Name == name {
			return reading
		}
	}
	return Reading{Name: name}
}

// MarshalJSON implements json.Marshaler.
func (r Readings) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, reading := range r {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(reading.Name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(reading.Value)
		if err != nil {
			return nil, fmt.Errorf("writing the signal %s: %w", reading.Name, err)
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// UnmarshalJSON implements json.Unmarshaler. It keeps the order of the object.
func (r *Readings) UnmarshalJSON(text []byte) error {
	*r = nil
	in := json.NewDecoder(bytes.NewReader(text))
	start, err := in.Token()
	if err != nil || start == nil { // null
		return err
	}
	if start != json.Delim('{') {
		return fmt.Errorf("reading signals: want an object, got %v", start)
	}
	for in.More() {
		name, err := in.Token()
		if err != nil {
			return err
		}
		reading := Reading{Name: fmt.Sprint(name)}
		if err := in.Decode(&reading.Value); err != nil {
			return fmt.Errorf("reading the signal %s: %w", reading.Name, err)
		}
		*r = append(*r, reading)
	}
	return nil
}
