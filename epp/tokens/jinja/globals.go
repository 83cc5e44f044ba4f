package jinja

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// maxRange is the longest range that Jinja's sandbox allows.
const maxRange = 100_000

// globals are the functions that templates find.
var globals = map[string]*function{
	"range":           {"range", rangeOf},
	"dict":            {"dict", dictOf},
	"namespace":       {"namespace", namespaceOf},
	"raise_exception": {"raise_exception", raise},
	"strftime_now":    {"strftime_now", strftimeNow},
}

func rangeOf(e *env, a *arguments) (Value, error) {
	bounds := [3]int64{0, 0, 1}
	if len(a.names) > 0 || len(a.positional) < 1 || len(a.positional) > 3 {
		return nil, errors.New("range takes 1 to 3 arguments")
	}
	for k, v := range a.positional {
		i, _, isFloat, ok := number(v)
		if !ok || isFloat {
			return nil, fmt.Errorf("range of %s", typeName(v))
		}
		bounds[k] = i
	}
	from, to, step := bounds[0], bounds[1], bounds[2]
	if len(a.positional) == 1 {
		from, to = 0, from
	}
	if step == 0 {
		return nil, errors.New("range with a step of 0")
	}
	out := &List{kind: isRange}
	for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
		if len(out.Items) == maxRange {
			return nil, fmt.Errorf("range has more than %d items", maxRange)
		}
		out.Items = append(out.Items, i)
	}
	return out, e.step(len(out.Items))
}

func dictOf(_ *env, a *arguments) (Value, error) {
	out := &Dict{}
	if len(a.positional) > 1 {
		return nil, errors.New("dict takes one dict")
	}
	for _, v := range a.positional {
		d, ok := v.(*Dict)
		if !ok {
			return nil, fmt.Errorf("dict of %s is not supported", typeName(v))
		}
		out = d.Copy()
	}
	for i, name := range a.names {
		out.Set(name, a.named[i])
	}
	return out, nil
}

func namespaceOf(e *env, a *arguments) (Value, error) {
	v, err := dictOf(e, a)
	if err != nil {
		return nil, err
	}
	return &namespace{*v.(*Dict)}, nil
}

func raise(_ *env, a *arguments) (Value, error) {
	if len(a.positional) == 0 {
		return nil, &Raised{}
	}
	return nil, &Raised{text(a.positional[0])}
}

func strftimeNow(e *env, a *arguments) (Value, error) {
	p, err := a.bind("format")
	if err != nil {
		return nil, err
	}
	format, ok := p[0].(string)
	if !ok {
		return nil, errors.New("strftime_now needs a format")
	}
	return strftime(e.options.Now, format)
}

// goLayouts are Go's layouts for what Python's strftime writes for a letter.
var goLayouts = map[byte]string{'a': "Mon", 'A': "Monday", 'b': "Jan", 'B': "January", 'd': "02", 'H': "15", 'I': "03", 'j': "002", 'm': "01",
	'M': "04", 'p': "PM", 'S': "05", 'y': "06", 'Y': "2006", 'F': "2006-01-02", 'T': "15:04:05", 'D': "01/02/06", 'R': "15:04"}

// strftime is Python's, in the C locale.
func strftime(t time.Time, format string) (Value, error) {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		if format[i] == '%' {
			b.WriteByte('%')
			continue
		}
		unpadded := format[i] == '-' && i+1 < len(format)
		if unpadded {
			i++
		}
		layout, ok := goLayouts[format[i]]
		if !ok {
			return nil, fmt.Errorf("strftime_now: %%%c is not supported", format[i])
		}
		s := t.Format(layout)
		if n, err := strconv.Atoi(s); unpadded && err == nil {
			s = strconv.Itoa(n)
		}
		b.WriteString(s)
	}
	return b.String(), nil
}
