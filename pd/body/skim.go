package body

// skim reads containers in which nothing is wanted, fast: it reads whole tokens while they are right and end within p, and
// tracks only the depth. It stops before the first token that step must read, because it is wrong or incomplete, and before
// the bracket that returns to a frame.
func (s *Scanner) skim(p []byte, i int) int {
	st, object := s.state, s.inObject()
	defer func() { s.state = st }()
	for i < len(p) {
		switch c := p[i]; c {
		case ' ', '\n', '\r', '\t':
			i++
		case '"':
			q := -1
			if st.takesValue() || st.takesKey() {
				q, _ = closing(p, i+1, false)
			}
			if q < 0 {
				return i
			}
			i = q + 1
			if st.takesKey() {
				st = beforeColon
			} else {
				st = afterValue
			}
		case ':':
			if st != beforeColon {
				return i
			}
			i++
			st = beforeValue
		case ',':
			if st != afterValue {
				return i
			}
			i++
			if st = beforeKey; !object {
				st = beforeValue
				i, _ = runIDs(p, i)
			}
		case '{', '[':
			if !st.takesValue() || !s.push(c == '{') {
				return i
			}
			i++
			st, object = s.state, c == '{'
		case '}', ']':
			if s.depth-1 == s.tracked || !st.mayClose() || object != (c == '}') {
				return i
			}
			i++
			s.depth--
			st, object = afterValue, s.inObject()
		default:
			end := i
			if st.takesValue() {
				end = scalarEnd(p, i)
			}
			if end == i {
				return i
			}
			i, st = end, afterValue
		}
	}
	return i
}

func (st state) takesValue() bool { return st == beforeValue || st == beforeFirst }
func (st state) takesKey() bool   { return st == beforeKey || st == beforeMember }
func (st state) mayClose() bool {
	return st == afterValue || st == beforeFirst || st == beforeMember
}

// scalarEnd returns the end of the number or word at p[i], or i if it is wrong or may continue after p.
func scalarEnd(p []byte, i int) int {
	if w := words[p[i]]; w != "" {
		if end := i + 1 + len(w); end <= len(p) && string(p[i+1:end]) == w {
			return end
		}
		return i
	}
	ph := overNumber
	for j := i; j < len(p); j++ {
		next := phases[ph][classes[p[j]]]
		if next == overNumber {
			if ph.complete() {
				return j
			}
			break
		}
		ph = next
	}
	return i
}
