package link

// Waiting is how many checks wait, to be sent or for their answer over the newest stream.
func (n *Node) Waiting() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	waiting := n.queue.Len()
	if n.stream != nil {
		waiting += len(n.stream.waiting)
	}
	return waiting
}
