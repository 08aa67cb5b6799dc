package link

// Waiting is how many checks wait, to be sent or for their answer over the newest stream.
func (n *Node) Waiting() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	waiting := n.queue.count
	if n.stream != nil {
		waiting += n.stream.waiting.count
	}
	return waiting
}
