package tokens

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// file is tokenizer.json, as far as ids depend on it. Its decoder is not read. Nor are truncation and padding, which the engines'
// tokenizers turn off for each text.
type file struct {
	AddedTokens   []fileToken     `json:"added_tokens"`
	Normalizer    *component      `json:"normalizer"`
	PreTokenizer  *component      `json:"pre_tokenizer"`
	PostProcessor *component      `json:"post_processor"`
	Model         json.RawMessage `json:"model"`
}

// fileToken is an added token.
type fileToken struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
}

// component is a normalizer, a pre-tokenizer or a post-processor: the members of all their types.
type component struct {
	Type string `json:"type"`

	Normalizers   []*component `json:"normalizers"`
	PreTokenizers []*component `json:"pretokenizers"`
	Processors    []*component `json:"processors"`

	Pattern          filePattern `json:"pattern"`
	Behavior         string      `json:"behavior"`
	Invert           bool        `json:"invert"`
	Content          string      `json:"content"`
	Prepend          string      `json:"prepend"`
	AddPrefixSpace   *bool       `json:"add_prefix_space"`
	UseRegex         *bool       `json:"use_regex"`
	IndividualDigits bool        `json:"individual_digits"`
	Delimiter        string      `json:"delimiter"`

	Replacement   string `json:"replacement"`
	PrependScheme string `json:"prepend_scheme"`
	Split         *bool  `json:"split"`

	CleanText          bool   `json:"clean_text"`
	HandleChineseChars bool   `json:"handle_chinese_chars"`
	StripAccents       *bool  `json:"strip_accents"`
	Lowercase          bool   `json:"lowercase"`
	StripLeft          bool   `json:"strip_left"`
	StripRight         bool   `json:"strip_right"`
	Charsmap           []byte `json:"precompiled_charsmap"`

	Single        []templatePart             `json:"single"`
	SpecialTokens map[string]templateSpecial `json:"special_tokens"`
	Cls           specialPair                `json:"cls"`
	Sep           specialPair                `json:"sep"`
}

// filePattern is what a Split or Replace looks for: one of the two.
type filePattern struct {
	String *string `json:"String"`
	Regex  *string `json:"Regex"`
}

// templatePart is a part of what a TemplateProcessing makes of one text.
type templatePart struct {
	SpecialToken *struct {
		ID string `json:"id"`
	} `json:"SpecialToken"`
	Sequence *struct {
		ID string `json:"id"`
	} `json:"Sequence"`
}

type templateSpecial struct {
	IDs []uint32 `json:"ids"`
}

// specialPair is a token with its id, in a list of two.
type specialPair struct{ id uint32 }

// UnmarshalJSON implements json.Unmarshaler.
func (p *specialPair) UnmarshalJSON(data []byte) error {
	var token string
	return json.Unmarshal(data, &[]any{&token, &p.id})
}

// fileModel is the model of byte-pair encoding.
type fileModel struct {
	Type                    string            `json:"type"`
	Dropout                 *float64          `json:"dropout"`
	UnkToken                *string           `json:"unk_token"`
	ContinuingSubwordPrefix string            `json:"continuing_subword_prefix"`
	EndOfWordSuffix         string            `json:"end_of_word_suffix"`
	FuseUnk                 bool              `json:"fuse_unk"`
	ByteFallback            bool              `json:"byte_fallback"`
	IgnoreMerges            bool              `json:"ignore_merges"`
	Vocab                   map[string]uint32 `json:"vocab"`
	Merges                  []fileMerge       `json:"merges"`
}

// fileMerge is a pair of tokens: "a b", or ["a", "b"].
type fileMerge struct{ left, right string }

// UnmarshalJSON implements json.Unmarshaler.
func (m *fileMerge) UnmarshalJSON(data []byte) error {
	if data[0] == '[' {
		var pair []string
		if err := json.Unmarshal(data, &pair); err != nil {
			return err
		}
		if len(pair) != 2 {
			return fmt.Errorf("a merge is of two tokens, got %d", len(pair))
		}
		m.left, m.right = pair[0], pair[1]
		return nil
	}
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	left, right, ok := strings.Cut(text, " ")
	if !ok || strings.Contains(right, " ") {
		return fmt.Errorf("a merge is two tokens with a space between them, got %q", text)
	}
	m.left, m.right = left, right
	return nil
}

// Read reads tokenizer.json. Its errors name the part of the file that is wrong or not supported.
func Read(data []byte) (*Tokenizer, error) {
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("reading tokenizer.json: %w", err)
	}
	t, err := f.tokenizer()
	if err != nil {
		return nil, fmt.Errorf("reading tokenizer.json: %w", err)
	}
	return t, nil
}

func (f *file) tokenizer() (*Tokenizer, error) {
	t := &Tokenizer{}
	var err error
	if t.normalizers, err = f.Normalizer.normalizers("normalizer"); err != nil {
		return nil, err
	}
	if t.splits, err = f.PreTokenizer.splits("pre_tokenizer"); err != nil {
		return nil, err
	}
	byteLevel, spaced := false, false
	for i := range t.splits {
		s := &t.splits[i]
		switch {
		case byteLevel:
			return nil, errors.New("pre_tokenizer: no other may follow ByteLevel")
		case s.space != nil && spaced:
			return nil, errors.New("pre_tokenizer: more than one Metaspace is not supported")
		case s.space != nil && s.before == firstPiece && (i > 0 || len(t.normalizers) > 0):
			return nil, errors.New("pre_tokenizer: prepend_scheme first is not supported with a normalizer, or behind another pre-tokenizer")
		}
		byteLevel, spaced = s.byteLevel, spaced || s.space != nil
		t.beginning = t.beginning || s.space != nil && s.before == firstPiece
	}
	if t.scan, err = newScanner(t.splits); err != nil {
		return nil, fmt.Errorf("pre_tokenizer: %w", err)
	}
	var vocab map[string]uint32
	if t.model, vocab, t.boundaries, err = readModel(f.Model, byteLevel); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if err := t.addTokens(f.AddedTokens, vocab); err != nil {
		return nil, fmt.Errorf("added_tokens: %w", err)
	}
	t.cut = t.cuts()
	if t.before, t.after, err = f.PostProcessor.template("post_processor"); err != nil {
		return nil, err
	}
	return t, nil
}

// addTokens makes the finders. An added token has the id of the vocabulary's token with its text, if there is one, else the next free id;
// that is what the file says too, if it was not written by hand.
func (t *Tokenizer) addTokens(tokens []fileToken, vocab map[string]uint32) error {
	t.raw, t.normal = newFinder(), newFinder()
	next := uint32(len(vocab))
	known := map[string]bool{}
	var buffers [2][]byte
	for _, token := range tokens {
		if token.Content == "" || known[token.Content] {
			continue
		}
		known[token.Content] = true
		id, ok := vocab[token.Content]
		if !ok {
			id = next
			next++
		}
		if id != token.ID {
			return fmt.Errorf("%q has the id %d in the file, and would get %d", token.Content, token.ID, id)
		}
		a := &added{id: id, singleWord: token.SingleWord, lstrip: token.LStrip, rstrip: token.RStrip}
		if token.Normalized {
			t.normal.add(t.normalizers.apply([]byte(token.Content), &buffers), a)
		} else {
			t.raw.add([]byte(token.Content), a)
		}
	}
	return nil
}

// template returns the ids before and after those of a text.
func (c *component) template(at string) (before, after []uint32, err error) {
	if c == nil {
		return nil, nil, nil
	}
	switch c.Type {
	case "ByteLevel": // about offsets only
		return nil, nil, nil
	case "RobertaProcessing", "BertProcessing":
		return []uint32{c.Cls.id}, []uint32{c.Sep.id}, nil
	case "Sequence":
		for i, p := range c.Processors {
			b, a, err := p.template(fmt.Sprintf("%s.processors[%d]", at, i))
			if err != nil {
				return nil, nil, err
			}
			before, after = append(b, before...), append(after, a...)
		}
		return before, after, nil
	case "TemplateProcessing":
		seen := false
		for i, part := range c.Single {
			switch {
			case part.Sequence != nil && !seen:
				seen = true
			case part.SpecialToken != nil:
				special, ok := c.SpecialTokens[part.SpecialToken.ID]
				if !ok {
					return nil, nil, fmt.Errorf("%s.single[%d]: special_tokens has no %q", at, i, part.SpecialToken.ID)
				}
				if seen {
					after = append(after, special.IDs...)
				} else {
					before = append(before, special.IDs...)
				}
			default:
				return nil, nil, fmt.Errorf("%s.single[%d]: must be a special token, or the only sequence", at, i)
			}
		}
		if !seen {
			return nil, nil, fmt.Errorf("%s.single: has no sequence", at)
		}
		return before, after, nil
	}
	return nil, nil, unsupported(at, c.Type)
}

func unsupported(at, kind string) error {
	return fmt.Errorf("%s: type %q is not supported", at, kind)
}
