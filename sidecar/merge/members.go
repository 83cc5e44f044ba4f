package merge

import "github.com/tandem-serving/tandem/pd/body"

// The members that are found in answers and events, in the order of table's wants.
const (
	wID = iota
	wCreated
	wChoices
	wChoice
	wIndex
	wUsage
	wCompletion
	wTotal
	wPromptDetails
	wReasoning
	wDetails
	wReasoningDetail
)

// table finds what changes in OpenAI's form.
var table = body.NewTable(
	body.Want{Path: "id"},
	body.Want{Path: "created"},
	body.Want{Path: "choices"},
	body.Want{Path: "choices.*"},
	body.Want{Path: "choices.*.index"},
	body.Want{Path: "usage"},
	body.Want{Path: "usage.completion_tokens"},
	body.Want{Path: "usage.total_tokens"},
	body.Want{Path: "usage.prompt_tokens_details"},
	body.Want{Path: "usage.reasoning_tokens"},
	body.Want{Path: "usage.completion_tokens_details"},
	body.Want{Path: "usage.completion_tokens_details.reasoning_tokens"},
)

// wOwnIndex is the member of ownTable.
const wOwnIndex = 0

// The tables of SGLang's form: the elements of a list, and the index of an event.
var (
	listTable = body.NewTable(body.Want{Path: "*"})
	ownTable  = body.NewTable(body.Want{Path: "index"})
)

// limits allow batches of some ten thousand prompts.
var limits = body.Limits{Members: 1 << 16}

// edit appends data with other values in place of some members, which are in order of appearance. value appends what replaces
// a member; ok is false if the member stays.
func edit(dst, data []byte, members []body.Member, value func(dst []byte, m body.Member) (_ []byte, ok bool)) []byte {
	at := int64(0)
	for _, m := range members {
		if m.Value.Start < at {
			continue // it is in a member that was replaced
		}
		if with, ok := value(append(dst, data[at:m.Value.Start]...), m); ok {
			dst, at = with, m.Value.End
		}
	}
	return append(dst, data[at:]...)
}
