package api

// usage has the token counts of a whole answer.
type usage struct {
	PromptTokens            int           `json:"prompt_tokens"`
	TotalTokens             int           `json:"total_tokens"`
	CompletionTokens        int           `json:"completion_tokens"`
	PromptTokensDetails     promptDetails `json:"prompt_tokens_details"`
	CompletionTokensDetails *any          `json:"completion_tokens_details"`
}

type promptDetails struct {
	CachedTokens       int         `json:"cached_tokens"`
	CreatedCacheTokens *int        `json:"created_cache_tokens"` // chat only
	MultimodalTokens   *modalities `json:"multimodal_tokens"`
}

// chunkUsage has the token counts in a stream. Only the last chunk has details, and those have no null members.
type chunkUsage struct {
	PromptTokens        int           `json:"prompt_tokens"`
	TotalTokens         int           `json:"total_tokens"`
	CompletionTokens    int           `json:"completion_tokens"`
	PromptTokensDetails *chunkDetails `json:"prompt_tokens_details,omitempty"`
	// CompletionTokensDetails is null in the running usage of chat, and absent elsewhere.
	CompletionTokensDetails *any `json:"completion_tokens_details,omitempty"`
}

type chunkDetails struct {
	CachedTokens       int         `json:"cached_tokens"`
	CreatedCacheTokens *int        `json:"created_cache_tokens,omitempty"`
	MultimodalTokens   *modalities `json:"multimodal_tokens,omitempty"`
}

// totalUsage counts each prompt once, and all choices. As in the engine, the cached tokens are those of the last prompt
// alone.
func totalUsage(q *generateRequest, answers []answer, chat bool) usage {
	var u usage
	for _, p := range q.prompts {
		u.PromptTokens += len(p)
	}
	for _, a := range answers {
		u.CompletionTokens += len(a.tokens)
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	last := answers[len(answers)-1].usage
	u.PromptTokensDetails.CachedTokens = last.Cached
	if q.imageTokens > 0 {
		u.PromptTokensDetails.MultimodalTokens = &modalities{Image: q.imageTokens}
	}
	if chat {
		u.PromptTokensDetails.CreatedCacheTokens = &last.Created
	}
	return u
}

// runningUsage returns the counts of one choice so far, which continuous_usage_stats adds to its chunks.
func runningUsage(q *generateRequest, answers []answer, index int, chat bool) *chunkUsage {
	prompt, completion := len(q.prompts[index/q.n]), len(answers[index].tokens)
	u := &chunkUsage{PromptTokens: prompt, CompletionTokens: completion, TotalTokens: prompt + completion}
	if chat {
		u.CompletionTokensDetails = new(any)
	}
	return u
}

func finalUsage(q *generateRequest, answers []answer, chat bool) *chunkUsage {
	t := totalUsage(q, answers, chat)
	return &chunkUsage{
		PromptTokens: t.PromptTokens, TotalTokens: t.TotalTokens, CompletionTokens: t.CompletionTokens,
		PromptTokensDetails: &chunkDetails{t.PromptTokensDetails.CachedTokens, t.PromptTokensDetails.CreatedCacheTokens, t.PromptTokensDetails.MultimodalTokens},
	}
}
